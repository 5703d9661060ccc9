package kvindex

// prefetches is how many cache lines are asked for at once.
const prefetches = 16
