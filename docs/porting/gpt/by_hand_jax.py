"""Text written letter by letter, after the kind of keras.io/examples/generative/text_generation_with_miniature_gpt."""

from pydoc_data.topics import topics

import keras
import numpy as np
from keras import layers


class Positions(layers.Layer):
    def build(self, shape):
        self.table = self.add_weight(shape=shape[1:])

    def call(self, x):
        return x + self.table


keras.distribution.set_distribution(keras.distribution.DataParallel())
text = "\n".join(topics[name] for name in sorted(topics))[:200_000]
letters = sorted(set(text))
numbers = np.array([letters.index(letter) for letter in text])
length = 64
windows = numbers[: len(numbers) // length * length].reshape(-1, length)
x, y = windows[:, :-1], windows[:, 1:]
x_train, y_train, x_test, y_test = x[:-200], y[:-200], x[-200:], y[-200:]

inputs = keras.Input(shape=(length - 1,), dtype="int32")
x = Positions()(layers.Embedding(len(letters), 64)(inputs))
attention = layers.MultiHeadAttention(4, 16)(x, x, use_causal_mask=True)
x = layers.LayerNormalization()(layers.Add()([x, attention]))
x = layers.Add()([x, layers.Dense(64)(layers.Dense(128, activation="relu")(x))])
model = keras.Model(inputs, layers.Dense(len(letters), activation="softmax")(x))
model.compile(loss="sparse_categorical_crossentropy", optimizer="adam", metrics=["accuracy"])

model.fit(x_train, y_train, batch_size=64, epochs=2, validation_data=(x_test, y_test))
print(model.evaluate(x_test, y_test, return_dict=True))
