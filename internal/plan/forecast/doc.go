// Package forecast predicts a series that is observed once per step, such as the arrivals of requests.
//
//	model      the mean that it predicts                                              memory of a state
//	constant   the last value                                                         1.3 KiB
//	kalman     a level and a trend, followed by a Kalman filter                       1.4 KiB
//	arima      an autoregression of the last 64 values, or of their differences       2 KiB
//	seasonal   a level, a trend and the usual addition of a season (a day)            5 KiB
//	auto       at each horizon, the model that was nearest lately: those above, a
//	           mean of about 20 steps, or a slow trend                                11 KiB
//
// A [Forecaster] is a value: observing returns the next state and copies about as much as the table shows. Memory does not
// grow with time. States contain pointers to parts that never change, so they must not be compared with ==.
//
// Deviations come from forecasts that the same forecaster made before: each one remembers its predictions for 1, 2, 4 … 64 steps
// ahead, and compares them with the values that came. So a quantile keeps its promise, whether the model fits the series or not.
// Until forecasts of some length were compared, their deviation follows from shorter ones, and at first from the model's.
//
// All values are at least 0 and at most 1e15; others are moved there. A NaN is a step without a value.
package forecast
