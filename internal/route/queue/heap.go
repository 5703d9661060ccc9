package queue

import "container/heap"

// member is an element of a heap. It is compared with others, and stores its index in the heap.
type member[T any] interface {
	before(other T) bool
	place() *int
}

// heapOf is a heap from which any member can be removed, by its stored index. Its zero value is empty;
// list[0] goes first.
type heapOf[T member[T]] struct{ list []T }

func (h *heapOf[T]) push(x T)   { heap.Push((*sorted[T])(h), x) }
func (h *heapOf[T]) moved(x T)  { heap.Fix((*sorted[T])(h), *x.place()) }
func (h *heapOf[T]) remove(x T) { heap.Remove((*sorted[T])(h), *x.place()) }

// sorted implements heap.Interface for a heapOf, whose own methods have other names.
type sorted[T member[T]] heapOf[T]

func (h *sorted[T]) Len() int           { return len(h.list) }
func (h *sorted[T]) Less(i, j int) bool { return h.list[i].before(h.list[j]) }
func (h *sorted[T]) Swap(i, j int) {
	h.list[i], h.list[j] = h.list[j], h.list[i]
	*h.list[i].place() = i
	*h.list[j].place() = j
}

// Push appends.
func (h *sorted[T]) Push(x any) {
	m := x.(T)
	*m.place() = len(h.list)
	h.list = append(h.list, m)
}

// Pop removes the last member.
func (h *sorted[T]) Pop() any {
	last := len(h.list) - 1
	m := h.list[last]
	clear(h.list[last:])
	h.list = h.list[:last]
	return m
}
