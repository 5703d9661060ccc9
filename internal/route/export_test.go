package route

// Promised returns the number of predictions that can be taken back, for tests of the whole router.
func (r *Router) Promised() int {
	n, _ := r.predictor.Promised()
	return n
}
