"""A series forecast by an LSTM, after the kind of keras.io/examples/timeseries/timeseries_weather_forecasting."""

import keras
import numpy as np
from keras import layers
from statsmodels.datasets import co2

from kmgpu import Recipe


def recipe():
    series = co2.load_pandas().data["co2"].interpolate().to_numpy("float32")
    past, future = 52, 4
    starts = range(len(series) - past - future)
    x = np.stack([series[i : i + past] - series[i + past - 1] for i in starts])[..., None]
    y = np.stack([series[i + past : i + past + future] - series[i + past - 1] for i in starts])
    x_train, y_train, x_test, y_test = x[:1700], y[:1700], x[1700:], y[1700:]

    inputs = keras.Input(shape=(past, 1))
    outputs = layers.Dense(future)(layers.LSTM(32)(inputs))
    model = keras.Model(inputs, outputs)
    model.compile(optimizer=keras.optimizers.Adam(learning_rate=0.003), loss="mse", metrics=["mae"])

    return Recipe(model, train=(x_train, y_train), validation=(x_test, y_test), batch_size=64, epochs=5)
