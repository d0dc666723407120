package criproxy

import (
	"context"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// moment is the time of a fault in a call.
type moment int

const (
	before moment = iota
	after
)

// Option restricts a fault to some calls, a number of calls, or a moment. All given options have to match.
type Option func(*Fault)

// For matches calls about a pod, by its name or UID.
func For(pod string) Option {
	return about(func(s Subject) bool { return pod != "" && (s.Pod == pod || s.UID == pod) })
}

// Container matches calls about a container of this name.
func Container(name string) Option {
	return about(func(s Subject) bool { return s.Container == name })
}

// Image matches calls about an image, by its name in the request.
func Image(name string) Option {
	return about(func(s Subject) bool { return s.Image == name })
}

// Times limits a fault to the first n matching calls; without it a fault stays until it is lifted.
func Times(n int) Option {
	return func(f *Fault) { f.left = n }
}

// AfterCall lets the runtime do its work first: only the answer meets the fault.
func AfterCall() Option {
	return func(f *Fault) { f.when = after }
}

func about(holds func(Subject) bool) Option {
	return func(f *Fault) { f.matches = append(f.matches, holds) }
}

// Fault is a fault that calls meet. Its methods may be called from any goroutine.
type Fault struct {
	owner   *faults
	method  string
	matches []func(Subject) bool
	when    moment
	delay   time.Duration
	hang    bool
	drop    bool
	err     error
	lifted  chan struct{}

	// The owner's lock guards the following fields.

	left    int // negative: no limit
	met     int
	waiting int
	once    sync.Once
}

// Lift ends the fault: later calls do not meet it, and the calls that it delays continue.
func (f *Fault) Lift() {
	f.once.Do(func() {
		f.owner.remove(f)
		close(f.lifted)
	})
}

// Met returns the number of calls that have met the fault.
func (f *Fault) Met() int {
	f.owner.mu.Lock()
	defer f.owner.mu.Unlock()
	return f.met
}

// Waiting returns the number of calls that wait at the fault now.
func (f *Fault) Waiting() int {
	f.owner.mu.Lock()
	defer f.owner.mu.Unlock()
	return f.waiting
}

// Fail makes calls of a method, for example "RunPodSandbox", fail with a code.
func (p *Proxy) Fail(method string, code codes.Code, options ...Option) *Fault {
	return p.faults.add(&Fault{method: method, err: status.Errorf(code, "criproxy: %s fails because the test says so", method)}, options)
}

// Delay delays calls of a method.
func (p *Proxy) Delay(method string, delay time.Duration, options ...Option) *Fault {
	return p.faults.add(&Fault{method: method, delay: delay}, options)
}

// Hang makes calls of a method wait until the fault is lifted or the client gives up.
func (p *Proxy) Hang(method string, options ...Option) *Fault {
	return p.faults.add(&Fault{method: method, hang: true}, options)
}

// Drop makes calls of a method break their connection, and so every other call on it. The client may reconnect at once.
func (p *Proxy) Drop(method string, options ...Option) *Fault {
	return p.faults.add(&Fault{method: method, drop: true, err: status.Error(codes.Unavailable, "criproxy: the connection is broken because the test says so")}, options)
}

// Count returns the number of calls of a method that match the options. Times and AfterCall are ignored.
func (p *Proxy) Count(method string, options ...Option) int {
	want := &Fault{method: method, left: -1}
	for _, option := range options {
		option(want)
	}
	p.faults.mu.Lock()
	defer p.faults.mu.Unlock()
	n := 0
	for _, c := range p.faults.calls {
		if want.isFor(c.method, c.about) {
			n++
		}
	}
	return n
}

// InFlight returns the number of open calls of a method.
func (p *Proxy) InFlight(method string) int {
	p.faults.mu.Lock()
	defer p.faults.mu.Unlock()
	return p.faults.inFlight[method]
}

func (f *Fault) isFor(method string, s Subject) bool {
	return f.method == method && !slices.ContainsFunc(f.matches, func(holds func(Subject) bool) bool { return !holds(s) })
}

// faults has all faults of a proxy, and its calls.
type faults struct {
	mu       sync.Mutex
	active   []*Fault
	calls    []came
	inFlight map[string]int
}

// came is a received call.
type came struct {
	method string
	about  Subject
}

func (fs *faults) add(f *Fault, options []Option) *Fault {
	f.owner, f.left, f.lifted = fs, -1, make(chan struct{})
	for _, option := range options {
		option(f)
	}
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.active = append(fs.active, f)
	return f
}

func (fs *faults) remove(f *Fault) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.active = slices.DeleteFunc(fs.active, func(other *Fault) bool { return other == f })
}

func (fs *faults) liftAll() {
	fs.mu.Lock()
	active := slices.Clone(fs.active)
	fs.mu.Unlock()
	for _, f := range active {
		f.Lift()
	}
}

// enter records a call; done has to be called at its end.
func (fs *faults) enter(method string, s Subject) (done func()) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.inFlight == nil {
		fs.inFlight = map[string]int{}
	}
	fs.calls = append(fs.calls, came{method: method, about: s})
	fs.inFlight[method]++
	return func() {
		fs.mu.Lock()
		defer fs.mu.Unlock()
		fs.inFlight[method]--
	}
}

// meet applies the matching faults to a call, in the order in which they were created. It returns the error with which
// the call ends, or that of ctx when the client gives up.
func (fs *faults) meet(ctx context.Context, method string, s Subject, when moment, breakOff func()) error {
	for _, f := range fs.take(method, s, when) {
		if err := f.hold(ctx); err != nil {
			return status.FromContextError(err).Err()
		}
		if f.drop {
			breakOff()
		}
		if f.err != nil {
			return f.err
		}
	}
	return nil
}

// take returns the faults that a call meets, and counts the call for each of them.
func (fs *faults) take(method string, s Subject, when moment) []*Fault {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	var met []*Fault
	for _, f := range fs.active {
		if f.when != when || f.left == 0 || !f.isFor(method, s) {
			continue
		}
		if f.left > 0 {
			f.left--
		}
		f.met++
		met = append(met, f)
	}
	return met
}

// hold delays a call as the fault requires.
func (f *Fault) hold(ctx context.Context) error {
	if !f.hang && f.delay <= 0 {
		return nil
	}
	f.count(1)
	defer f.count(-1)
	var over <-chan time.Time
	if !f.hang {
		timer := time.NewTimer(f.delay)
		defer timer.Stop()
		over = timer.C
	}
	select {
	case <-over:
		return nil
	case <-f.lifted:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (f *Fault) count(n int) {
	f.owner.mu.Lock()
	defer f.owner.mu.Unlock()
	f.waiting += n
}
