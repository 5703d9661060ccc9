package process

import "sync"

// Each calls do for 0 to n-1, as many at a time as slots has places, and returns the first error.
func Each(slots chan struct{}, n int, do func(i int) error) error {
	errs := make([]error, n)
	var running sync.WaitGroup
	for i := range n {
		slots <- struct{}{}
		running.Go(func() {
			defer func() { <-slots }()
			errs[i] = do(i)
		})
	}
	running.Wait()

	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
