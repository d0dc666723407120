// Command hello is the one program of the example image. It has no dependencies and needs nothing in its file system,
// so the image is made without a registry; its modes do what a pod's containers do in examples and in tests.
//
//	hello serve  [-addr :8080] [-every 10s]   answers HTTP and prints a line each interval, until SIGTERM
//	hello init   [-after 0s]                  prints a line and exits 0
//	hello crash  [-after 1s] [-code 1]        prints a line and exits with a code
//	hello sleep                               waits for SIGTERM
//	hello env                                 prints its environment and waits for SIGTERM
//	hello grow   [-mib 256]                   takes so much memory and waits for SIGTERM
//
// With -ignore-term the modes that wait do not end on SIGTERM, so that only SIGKILL ends them.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"syscall"
	"time"
)

// usageCode is the exit code for a command line that makes no sense.
const usageCode = 64

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

type options struct {
	addr       string
	every      time.Duration
	after      time.Duration
	code       int
	message    string
	mib        int
	ignoreTerm bool
}

// run is main without the process's globals: it returns the exit code.
func run(args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		fmt.Fprintln(stderr, "hello: name a mode: serve, init, crash, sleep, env or grow")
		return usageCode
	}
	mode := args[0]
	opts, err := parse(mode, args[1:], stderr)
	if err != nil {
		return usageCode
	}
	ctx, stop := untilTerminated(opts.ignoreTerm, stdout)
	defer stop()
	switch mode {
	case "serve":
		return serve(ctx, opts, stdout, stderr)
	case "init":
		return finish(ctx, opts.after, 0, opts.message, stdout)
	case "crash":
		return finish(ctx, opts.after, opts.code, opts.message, stdout)
	case "sleep":
		fmt.Fprintln(stdout, opts.message)
		<-ctx.Done()
		return 0
	case "env":
		env := os.Environ()
		slices.Sort(env)
		for _, line := range env {
			fmt.Fprintln(stdout, line)
		}
		<-ctx.Done()
		return 0
	case "grow":
		grow(ctx, opts.mib, opts.message, stdout)
		return 0
	default:
		fmt.Fprintf(stderr, "hello: there is no mode %q: use serve, init, crash, sleep, env or grow\n", mode)
		return usageCode
	}
}

func parse(mode string, args []string, stderr io.Writer) (options, error) {
	var opts options
	flags := flag.NewFlagSet("hello "+mode, flag.ContinueOnError)
	flags.SetOutput(stderr)
	after := time.Duration(0)
	if mode == "crash" {
		after = time.Second
	}
	flags.StringVar(&opts.addr, "addr", ":8080", "address to answer HTTP on")
	flags.DurationVar(&opts.every, "every", 10*time.Second, "time between two lines of serve")
	flags.DurationVar(&opts.after, "after", after, "time before init and crash exit")
	flags.IntVar(&opts.code, "code", 1, "exit code of crash")
	flags.StringVar(&opts.message, "message", "hello from "+mode, "line to print")
	flags.IntVar(&opts.mib, "mib", 256, "MiB of memory that grow takes")
	flags.BoolVar(&opts.ignoreTerm, "ignore-term", false, "do not end on SIGTERM")
	return opts, flags.Parse(args)
}

// untilTerminated returns a context that SIGTERM and SIGINT end. As the first process of a container the program gets
// no default action for either, so ignoring must be asked for and obeying must be done here.
func untilTerminated(ignore bool, stdout io.Writer) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		for s := range signals {
			if !ignore {
				cancel()
				return
			}
			fmt.Fprintf(stdout, "ignoring %v\n", s)
		}
	}()
	return ctx, cancel
}

// finish prints a line and gives the exit code after a delay; a termination before that ends it with 0.
func finish(ctx context.Context, after time.Duration, code int, message string, stdout io.Writer) int {
	fmt.Fprintln(stdout, message)
	select {
	case <-ctx.Done():
		return 0
	case <-time.After(after):
		return code
	}
}

// grow takes memory, and keeps it until the context ends.
func grow(ctx context.Context, mib int, message string, stdout io.Writer) {
	fmt.Fprintln(stdout, message)
	var taken [][]byte
	for len(taken) < mib && ctx.Err() == nil {
		taken = append(taken, bytes.Repeat([]byte{1}, 1<<20)) // written to, or the kernel would not give it
	}
	<-ctx.Done()
	runtime.KeepAlive(taken)
}

func serve(ctx context.Context, opts options, stdout, stderr io.Writer) int {
	listener, err := net.Listen("tcp", opts.addr)
	if err != nil {
		fmt.Fprintf(stderr, "hello: %v\n", err)
		return 1
	}
	hostname, err := os.Hostname()
	if err != nil {
		hostname = "unknown"
	}
	server := &http.Server{
		ReadHeaderTimeout: 5 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			fmt.Fprintf(w, "%s (%s, %q)\n", opts.message, hostname, r.URL.Path) //nolint:gosec // plain text, quoted
		}),
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	ticker := time.NewTicker(opts.every)
	defer ticker.Stop()
	fmt.Fprintf(stdout, "%s: serving on %s\n", opts.message, listener.Addr())
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			fmt.Fprintln(stdout, "bye")
			return 0
		case err := <-failed:
			if !errors.Is(err, http.ErrServerClosed) {
				fmt.Fprintf(stderr, "hello: %v\n", err)
			}
			return 1
		case <-ticker.C:
			fmt.Fprintf(stdout, "%s: line %d\n", opts.message, n)
		}
	}
}
