// Package logbuffer has a buffer for logs that a test reads while they are still being written.
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

// String returns the content.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.String()
}

// Take returns the content and clears it.
func (b *Buffer) Take() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	text := b.buffer.String()
	b.buffer.Reset()
	return text
}
