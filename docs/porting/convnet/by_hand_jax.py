"""Digits with a convnet, after the kind of keras.io/examples/vision/mnist_convnet."""

import keras
from keras import layers
from sklearn.datasets import load_digits

keras.distribution.set_distribution(keras.distribution.DataParallel())
digits = load_digits()
x = digits.images[..., None].astype("float32") / 16
y = digits.target
x_train, y_train, x_test, y_test = x[:1500], y[:1500], x[1500:], y[1500:]

model = keras.Sequential(
    [
        keras.Input(shape=(8, 8, 1)),
        layers.Conv2D(32, kernel_size=3, padding="same", activation="relu"),
        layers.MaxPooling2D(pool_size=2),
        layers.Conv2D(64, kernel_size=3, padding="same", activation="relu"),
        layers.MaxPooling2D(pool_size=2),
        layers.Flatten(),
        layers.Dropout(0.5),
        layers.Dense(10, activation="softmax"),
    ]
)
model.compile(loss="sparse_categorical_crossentropy", optimizer="adam", metrics=["accuracy"])

model.fit(x_train, y_train, batch_size=128, epochs=15, validation_data=(x_test, y_test))
print(model.evaluate(x_test, y_test, return_dict=True))
