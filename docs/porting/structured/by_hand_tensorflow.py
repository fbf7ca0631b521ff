"""A table with categories, after the kind of keras.io/examples/structured_data/wide_deep_cross_networks."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from statsmodels.datasets import fair

table = fair.load_pandas().data
numbers = table[["age", "yrs_married", "children", "educ"]].to_numpy("float32")
numbers = (numbers - numbers.mean(axis=0)) / numbers.std(axis=0)
categories = table[["rate_marriage", "religious", "occupation", "occupation_husb"]].to_numpy("int32")
x = np.concatenate([numbers, categories], axis=1).astype("float32")
y = (table["affairs"] > 0).to_numpy("float32")[:, None]
order = np.random.default_rng(0).permutation(len(y))
train, test = order[:5000], order[5000:]
x_train, y_train, x_test, y_test = x[train], y[train], x[test], y[test]

strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    inputs = keras.Input(shape=(8,))
    deep = [inputs[:, :4]]
    for column, count in ((4, 6), (5, 5), (6, 7), (7, 7)):
        deep.append(layers.Embedding(count, 4)(inputs[:, column]))
    x = layers.Dense(64, activation="relu")(layers.Concatenate()(deep))
    x = layers.Dropout(0.2)(layers.BatchNormalization()(x))
    model = keras.Model(inputs, layers.Dense(1, activation="sigmoid")(x))
    model.compile(optimizer="adam", loss="binary_crossentropy", metrics=["accuracy"])

model.fit(x_train, y_train, batch_size=128, epochs=5, validation_data=(x_test, y_test))
print(model.evaluate(x_test, y_test, return_dict=True))
