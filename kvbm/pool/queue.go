package pool

// queue is a binary heap of slots, whose positions are in the slots: so any of them can be removed.
type queue struct {
	slots []slot // the pool's slots
	heap  []int32
	less  func(a, b *slot) bool
}

func newQueue(slots []slot, less func(a, b *slot) bool) queue {
	return queue{slots: slots, heap: make([]int32, 0, len(slots)), less: less}
}

// first returns the lowest slot, and -1 if the queue is empty.
func (q *queue) first() int32 {
	if len(q.heap) == 0 {
		return -1
	}
	return q.heap[0]
}

func (q *queue) push(i int32) {
	q.heap = append(q.heap, i)
	q.moveUp(len(q.heap)-1, i)
}

func (q *queue) remove(i int32) {
	at := int(q.slots[i].at)
	last := q.heap[len(q.heap)-1]
	q.heap = q.heap[:len(q.heap)-1]
	if last != i {
		q.place(at, last)
		q.fix(last)
	}
}

// fix restores the order after a slot changed.
func (q *queue) fix(i int32) {
	q.moveUp(int(q.slots[i].at), i)
	q.down(int(q.slots[i].at), i)
}

// moveUp moves slot i from a position towards the first, as far as it belongs.
func (q *queue) moveUp(at int, i int32) {
	for at > 0 {
		parent := (at - 1) / 2
		if !q.less(&q.slots[i], &q.slots[q.heap[parent]]) {
			break
		}
		q.place(at, q.heap[parent])
		at = parent
	}
	q.place(at, i)
}

// down moves slot i from a position towards the end, as far as it belongs.
func (q *queue) down(at int, i int32) {
	for {
		child := 2*at + 1
		if child >= len(q.heap) {
			break
		}
		if right := child + 1; right < len(q.heap) && q.less(&q.slots[q.heap[right]], &q.slots[q.heap[child]]) {
			child = right
		}
		if !q.less(&q.slots[q.heap[child]], &q.slots[i]) {
			break
		}
		q.place(at, q.heap[child])
		at = child
	}
	q.place(at, i)
}

func (q *queue) place(at int, i int32) {
	q.heap[at] = i
	q.slots[i].at = int32(at)
}
