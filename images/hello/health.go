package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// health answers checks by name. Their results are in files that a process outside of the container may write: a file
// NAME in the directory has the result of the check NAME, and NAME.calls gets a line for each call.
//
//	no file, an empty one, ok   it passes
//	fail TEXT                   it fails with the text
//	hang                        it never answers
//	redirect URL                it passes; over HTTP it answers with a redirect
type health struct {
	// dir is the directory; empty means that every check passes and calls are not recorded.
	dir string
	// from is the time at which checks begin to pass; before that all fail, as those of a program with a slow start.
	from time.Time
}

// verdict is the result of a check.
type verdict struct {
	ok       bool
	text     string
	redirect string
}

// check answers a check once and records the caller. The end of the context ends a check that hangs.
func (h health) check(ctx context.Context, name, caller string) (verdict, error) {
	if err := h.note(name, caller); err != nil {
		return verdict{}, err
	}
	v, hangs, err := h.look(name)
	if hangs {
		<-ctx.Done()
	}
	return v, err
}

// look returns the result of a check, or that it hangs.
func (h health) look(name string) (v verdict, hangs bool, err error) {
	if left := time.Until(h.from); left > 0 {
		return verdict{text: fmt.Sprintf("starting, %v left", left.Round(100*time.Millisecond))}, false, nil
	}
	if h.dir == "" || name == "" {
		return verdict{ok: true, text: "ok"}, false, nil
	}
	content, err := os.ReadFile(h.file(name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return verdict{}, false, fmt.Errorf("read the result of check %s: %w", name, err)
	}
	word, rest, _ := strings.Cut(strings.TrimSpace(string(content)), " ")
	switch word {
	case "", "ok":
		return verdict{ok: true, text: "ok"}, false, nil
	case "fail":
		return verdict{text: strings.TrimSpace("fail " + rest)}, false, nil
	case "hang":
		return verdict{text: "it was to hang"}, true, nil
	case "redirect":
		return verdict{ok: true, text: "elsewhere", redirect: rest}, false, nil
	default:
		return verdict{}, false, fmt.Errorf("the result of check %s is %q: use ok, fail, hang or redirect", name, word)
	}
}

// note records a call of a check.
func (h health) note(name, caller string) (err error) {
	if h.dir == "" || name == "" {
		return nil
	}
	calls, err := os.OpenFile(h.file(name)+".calls", os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("record a call of check %s: %w", name, err)
	}
	defer func() { err = errors.Join(err, calls.Close()) }()
	_, err = fmt.Fprintf(calls, "%s %s\n", time.Now().UTC().Format(time.RFC3339Nano), caller)
	return err
}

// file returns the path of a check's file. The name of the check may come from the network.
func (h health) file(name string) string { return filepath.Join(h.dir, filepath.Base(name)) }

// checkOnce runs one check as a command: its result is the exit code and a line of output.
func checkOnce(ctx context.Context, h health, names []string, stdout, stderr io.Writer) int {
	if len(names) != 1 {
		fmt.Fprintln(stderr, "hello: name one check: hello check -dir DIR NAME")
		return usageCode
	}
	v, err := h.check(ctx, names[0], "exec")
	if err != nil {
		fmt.Fprintf(stderr, "hello: %v\n", err)
		return 1
	}
	fmt.Fprintf(stdout, "%s: %s\n", names[0], v.text)
	if !v.ok {
		return 1
	}
	return 0
}
