package stream_test

import (
	"context"
	"sync"
	"time"

	"github.com/quartet-node/quartet/internal/stream"
)

// timeZero is the first time of fake clocks.
var timeZero = time.Unix(1_700_000_000, 0)

// breakable is a Source that can be replaced while subscribers use it.
type breakable struct {
	mu     sync.Mutex
	src    stream.Source[string]
	ctx    context.Context
	cancel context.CancelFunc
}

func (b *breakable) replace(src stream.Source[string]) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.cancel != nil {
		b.cancel()
	}
	b.src = src
	b.ctx, b.cancel = context.WithCancel(context.Background())
}

func (b *breakable) Subscribe(ctx context.Context, token []byte) (stream.Subscription[string], error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	sub, err := b.src.Subscribe(ctx, token)
	if err != nil {
		return nil, err
	}
	return broken{sub, b.ctx}, nil
}

type broken struct {
	stream.Subscription[string]
	server context.Context
}

func (b broken) Next(ctx context.Context) (stream.Message[string], error) {
	joined, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(b.server, cancel)()
	m, err := b.Subscription.Next(joined)
	if err != nil && ctx.Err() == nil && b.server.Err() != nil {
		return m, stream.ErrClosed
	}
	return m, err
}
