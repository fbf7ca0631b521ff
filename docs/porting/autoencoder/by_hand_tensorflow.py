"""Noise taken out of images, after the kind of keras.io/examples/vision/autoencoder."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from sklearn.datasets import load_digits

images = load_digits().images[..., None].astype("float32") / 16
noisy = np.clip(images + 0.3 * np.random.default_rng(0).normal(size=images.shape), 0, 1).astype("float32")
x_train, y_train, x_test, y_test = noisy[:1500], images[:1500], noisy[1500:], images[1500:]

strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    inputs = keras.Input(shape=(8, 8, 1))
    x = layers.Conv2D(32, 3, activation="relu", padding="same")(inputs)
    x = layers.MaxPooling2D(2, padding="same")(x)
    x = layers.Conv2D(32, 3, activation="relu", padding="same")(x)
    x = layers.Conv2DTranspose(32, 3, strides=2, activation="relu", padding="same")(x)
    outputs = layers.Conv2D(1, 3, activation="sigmoid", padding="same")(x)
    model = keras.Model(inputs, outputs)
    model.compile(optimizer="adam", loss="binary_crossentropy", metrics=["mae"])

model.fit(x_train, y_train, batch_size=128, epochs=10, validation_data=(x_test, y_test))
print(model.evaluate(x_test, y_test, return_dict=True))
