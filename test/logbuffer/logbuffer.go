// Package logbuffer is where tests have a log written to that they read while it is still written.
package logbuffer

import (
	"bytes"
	"sync"
)

// Buffer is an io.Writer whose content may be read at any time. The zero value is ready to use.
type Buffer struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

// Write never fails.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.Write(p)
}

// String returns what was written so far.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.String()
}

// Take returns what was written so far, and forgets it.
func (b *Buffer) Take() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	text := b.buffer.String()
	b.buffer.Reset()
	return text
}
