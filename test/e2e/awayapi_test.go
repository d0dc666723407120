package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"

	"github.com/quartet-node/quartet/test/livenode"
)

// answerWithin is the time limit for an answer, the same as that of a kubelet's clients.
const answerWithin = 30 * time.Second

// TestNoRequestIsRefusedWhileSyncloopIsAway kills syncloop repeatedly under clients of its API. A request that is made
// while syncloop is down waits and is answered. One that is in progress at a kill may break off.
func TestNoRequestIsRefusedWhileSyncloopIsAway(t *testing.T) {
	port := freePort(t)
	config := filepath.Join(t.TempDir(), "kubelet.yaml")
	// Anonymous users have all rights, on the loopback interface.
	text := "address: 127.0.0.1\nport: " + port + "\nauthentication: {anonymous: {enabled: true}}\n" +
		"authorization: {mode: AlwaysAllow}\n" + livenode.AnyMachine
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	node.RestartServices(t, "--config", config)
	place(t, "asked.yaml", manifest("asked", 1, "sleep"))
	name := await(t, "asked", "Ready", ready).Name

	c := clients{asking: map[string]func(context.Context) error{}}
	base := "https://127.0.0.1:" + port
	for _, path := range []string{"/healthz", "/pods", "/stats/summary", "/containerLogs/e2e/" + name + "/main"} {
		c.asking[path] = func(ctx context.Context) error { return ask(ctx, base+path, "") }
	}
	c.asking["read-only /pods"] = func(ctx context.Context) error { return ask(ctx, "http://127.0.0.1:"+node.Port()+"/pods", name) }
	c.asking["exec"] = func(ctx context.Context) error { return execIn(ctx, base, "/exec/e2e/"+name+"/main") }
	stop := c.start(t)
	for range 5 {
		answered := c.count()
		begun, old := time.Now(), pid(t, "syncloop")
		kill(t, "syncloop")
		awaitThat(t, "syncloop has ended", func() bool { return errors.Is(syscall.Kill(old, 0), syscall.ESRCH) })
		c.killed(begun, time.Now())
		awaitNewPID(t, "syncloop", old)
		awaitThat(t, "all have answers again", func() bool { return c.allMoreThan(answered) })
	}
	stop()
	for _, problem := range c.problems() {
		t.Error(problem)
	}
}

// clients send requests repeatedly.
type clients struct {
	asking map[string]func(context.Context) error

	mu      sync.Mutex
	answers map[string]int
	failed  []attempt
	kills   []attempt
}

// attempt is a failed request, or a kill.
type attempt struct {
	what       string
	begun, end time.Time
	err        error
}

// start starts the clients; the returned function stops them.
func (c *clients) start(t *testing.T) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	c.answers = map[string]int{}
	for what, ask := range c.asking {
		done.Go(func() {
			for ctx.Err() == nil {
				begun := time.Now()
				bounded, cancelOne := context.WithTimeout(ctx, answerWithin)
				err := ask(bounded)
				cancelOne()
				if ctx.Err() != nil {
					return
				}
				c.mu.Lock()
				if err == nil {
					c.answers[what]++
				} else {
					c.failed = append(c.failed, attempt{what: what, begun: begun, end: time.Now(), err: err})
				}
				c.mu.Unlock()
				select {
				case <-ctx.Done():
				case <-time.After(interval):
				}
			}
		})
	}
	return func() {
		cancel()
		done.Wait()
	}
}

func (c *clients) killed(begun, end time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kills = append(c.kills, attempt{begun: begun, end: end})
}

// count returns the number of answers of each client.
func (c *clients) count() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	counted := map[string]int{}
	for what := range c.asking {
		counted[what] = c.answers[what]
	}
	return counted
}

// allMoreThan reports whether each client has had more than one answer since before.
func (c *clients) allMoreThan(before map[string]int) bool {
	for what, now := range c.count() {
		if now < before[what]+2 {
			return false
		}
	}
	return true
}

// problems returns the failed requests that are errors: refused ones, and those that were not in progress at a kill.
func (c *clients) problems() (texts []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range c.failed {
		cut := false
		for _, k := range c.kills {
			cut = cut || f.begun.Before(k.end) && f.end.After(k.begun)
		}
		if !cut || errors.Is(f.err, syscall.ECONNREFUSED) || strings.Contains(f.err.Error(), "refused") {
			texts = append(texts, fmt.Sprintf("%s after %v: %v", f.what, f.end.Sub(f.begun), f.err))
		}
	}
	return texts
}

// ask fails unless a URL answers with a text.
func ask(ctx context.Context, url, want string) error {
	config := &tls.Config{InsecureSkipVerify: true}
	transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: config}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close() //nolint:errcheck // the body was only read
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK || !strings.Contains(string(body), want) {
		return fmt.Errorf("%s: %s", resp.Status, body)
	}
	return nil
}

// execIn runs a program in a container as kubectl does.
func execIn(ctx context.Context, base, path string) error {
	target, err := url.Parse(base + path + "?output=1&command=/hello&command=init&command=-message&command=asked")
	if err != nil {
		return err
	}
	config := &rest.Config{Host: base, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	executor, err := remotecommand.NewSPDYExecutor(config, http.MethodPost, target)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	if err := executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: &out}); err != nil {
		return err
	}
	if out.String() != "asked\n" {
		return fmt.Errorf("the program has printed %q", out.String())
	}
	return nil
}
