// Command hello is the only program of the example image. It has no dependencies and needs no files, so the image is
// created without a registry; its modes are the containers of examples and of tests.
//
//	hello serve  [-addr :8080] [-every 10s]   answers HTTP and prints a line each interval, until SIGTERM; also HTTPS,
//	             [-dir DIR] [-after 0s] …     gRPC and TCP with -https, -grpc and -tcp. Checks have the results in the
//	                                          files of DIR, see health, and fail before -after. With -page it serves
//	                                          the text of a file, with -password only to clients with the password in
//	                                          another file
//	hello check  [-dir DIR] NAME              runs one of the checks of serve; its result is the exit code
//	hello get    [-after 10s] URL             prints the answer to a GET of a URL; fails without an answer in that time
//	hello init   [-after 0s]                  prints a line and exits 0
//	hello crash  [-after 1s] [-code 1]        prints a line and exits with a code
//	hello sleep                               waits for SIGTERM
//	hello env                                 prints its environment and waits for SIGTERM
//	hello grow   [-mib 256]                   allocates memory and waits for SIGTERM
//
// Under the name tar it packs and unpacks the files of "kubectl cp"; the image has a link /bin/tar to it.
//
// With -ignore-term the modes that wait ignore SIGTERM, so that only SIGKILL ends them.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"time"
)

// usageCode is the exit code for a wrong command line.
const usageCode = 64

func main() {
	if filepath.Base(os.Args[0]) == "tar" {
		os.Exit(archive(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

type options struct {
	addr       string
	https      string
	grpc       string
	tcp        string
	dir        string
	page       string
	password   string
	every      time.Duration
	after      time.Duration
	code       int
	message    string
	mib        int
	ignoreTerm bool
	rest       []string
}

// run is main without the process's globals: it returns the exit code.
func run(args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		fmt.Fprintln(stderr, "hello: name a mode: serve, check, get, init, crash, sleep, env or grow")
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
	case "check":
		return checkOnce(ctx, health{dir: opts.dir}, opts.rest, stdout, stderr)
	case "get":
		return getURL(ctx, opts.after, opts.rest, stdout, stderr)
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
		fmt.Fprintf(stderr, "hello: unknown mode %q: use serve, check, get, init, crash, sleep, env or grow\n", mode)
		return usageCode
	}
}

func parse(mode string, args []string, stderr io.Writer) (options, error) {
	var opts options
	flags := flag.NewFlagSet("hello "+mode, flag.ContinueOnError)
	flags.SetOutput(stderr)
	after := time.Duration(0)
	switch mode {
	case "crash":
		after = time.Second
	case "get":
		after = 10 * time.Second
	}
	flags.StringVar(&opts.addr, "addr", ":8080", "address of the HTTP server")
	flags.StringVar(&opts.https, "https", "", "address of the HTTPS server, which has a self-signed certificate")
	flags.StringVar(&opts.grpc, "grpc", "", "address of the gRPC health server")
	flags.StringVar(&opts.tcp, "tcp", "", "address of the TCP listener, which is open while the check tcp passes")
	flags.StringVar(&opts.dir, "dir", "", "directory with the results of checks; without it they pass")
	flags.StringVar(&opts.page, "page", "", "file with the answer at /, read for each request; without it the message is the answer")
	flags.StringVar(&opts.password, "password", "", "file with the password of the page, for any user name; without it the page needs no password")
	flags.DurationVar(&opts.every, "every", 10*time.Second, "time between two lines of serve")
	flags.DurationVar(&opts.after, "after", after, "time until init and crash exit, until the checks of serve pass, and until get gives up")
	flags.IntVar(&opts.code, "code", 1, "exit code of crash")
	flags.StringVar(&opts.message, "message", "hello from "+mode, "line to print")
	flags.IntVar(&opts.mib, "mib", 256, "MiB of memory that grow allocates")
	flags.BoolVar(&opts.ignoreTerm, "ignore-term", false, "ignore SIGTERM")
	err := flags.Parse(args)
	opts.rest = flags.Args()
	return opts, err
}

// untilTerminated returns a context that SIGTERM and SIGINT cancel. The kernel ignores both for the first process of a
// container by default, so the program handles them here, or explicitly ignores them.
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

// finish prints a line and returns the exit code after a delay. A termination during the delay ends it with 0.
func finish(ctx context.Context, after time.Duration, code int, message string, stdout io.Writer) int {
	fmt.Fprintln(stdout, message)
	select {
	case <-ctx.Done():
		return 0
	case <-time.After(after):
		return code
	}
}

// grow allocates memory, and keeps it until the context ends.
func grow(ctx context.Context, mib int, message string, stdout io.Writer) {
	fmt.Fprintln(stdout, message)
	var taken [][]byte
	for len(taken) < mib && ctx.Err() == nil {
		// written to, because the kernel allocates pages at the first write
		taken = append(taken, bytes.Repeat([]byte{1}, 1<<20))
	}
	<-ctx.Done()
	runtime.KeepAlive(taken)
}
