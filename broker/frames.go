package broker

import (
	"math/bits"
	"sync"
)

// Frames of these sizes, powers of two, are used again: 64 KiB, the first stage of a larger one, to 64 MiB. Smaller
// ones cost little. Kafka's clients send requests of 1 MB at most unless they are told otherwise, franz-go one batch of
// that size for each of many partitions.
const (
	minFrameClass = 16
	maxFrameClass = 26

	// Of larger frames a connection has one in memory at a time.
	frameAlone = 8 << 20
)

// frameBuffers keeps the memory of large Produce requests for the next. A server that takes 500 MB a second would else
// have as much cleared, and collected, as garbage. The garbage collector empties it.
type frameBuffers [maxFrameClass - minFrameClass + 1]sync.Pool

// frameClass returns the class of a frame of n bytes, in place of which all are 1<<class bytes; false if it has none.
func frameClass(n int64) (class int, ok bool) {
	class = bits.Len64(uint64(n - 1))
	return class, class >= minFrameClass && class <= maxFrameClass
}

// frameRoom is how much memory a frame of n bytes takes.
func frameRoom(n int64) int64 {
	if class, ok := frameClass(n); ok {
		return 1 << class
	}
	return n
}

// get returns n bytes, which may hold anything, with a capacity of room.
func (f *frameBuffers) get(n, room int64) []byte {
	if class, ok := frameClass(room); ok && room == 1<<class {
		if b, ok := f[class-minFrameClass].Get().(*[]byte); ok {
			return (*b)[:n]
		}
	}
	return make([]byte, n, room)
}

// put takes a buffer back, of which nobody holds a part.
func (f *frameBuffers) put(b []byte) {
	if class, ok := frameClass(int64(cap(b))); ok && cap(b) == 1<<class {
		f[class-minFrameClass].Put(&b)
	}
}
