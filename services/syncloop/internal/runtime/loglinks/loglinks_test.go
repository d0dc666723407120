package loglinks_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/loglinks"
	"github.com/quartet-node/quartet/test/eventually"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// node holds pod logs and a keeper of their links.
type node struct {
	t     *testing.T
	logs  string
	clock *clocktesting.FakeClock
	log   bytes.Buffer

	mu         sync.Mutex
	known      bool
	containers []loglinks.Container
	looks      int
}

func newNode(t *testing.T) *node {
	t.Helper()
	return &node{t: t, logs: filepath.Join(t.TempDir(), "pods"), clock: clocktesting.NewFakeClock(time.Now()), known: true}
}

// add adds a container with a log.
func (n *node) add(name, id string) loglinks.Container {
	n.t.Helper()
	c := loglinks.Container{Namespace: "shop", Pod: "web", Name: name, ID: id, LogPath: filepath.Join(n.logs, "shop_web_u1", name, "0.log")}
	err := errors.Join(os.MkdirAll(filepath.Dir(c.LogPath), 0o750), os.WriteFile(c.LogPath, []byte(id), 0o600))
	if err != nil {
		n.t.Fatal(err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.containers = append(n.containers, c)
	return c
}

func (n *node) remove(id string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.containers = slices.DeleteFunc(n.containers, func(c loglinks.Container) bool { return c.ID == id })
}

func (n *node) list() ([]loglinks.Container, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.looks++
	return slices.Clone(n.containers), n.known
}

// start runs a keeper until stop is called.
func (n *node) start() (stop func()) {
	n.t.Helper()
	k := loglinks.New(loglinks.Config{
		PodLogsDir: n.logs, Containers: n.list, Clock: n.clock, Logger: slog.New(slog.NewTextHandler(&n.log, nil)),
	})
	ctx, cancel := context.WithCancel(n.t.Context())
	done := make(chan error, 1)
	looks := n.looked()
	go func() { done <- k.Run(ctx) }()
	n.eventually("it has looked", func() bool { return n.looked() > looks && n.clock.HasWaiters() })
	return func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			n.t.Error(err)
		}
	}
}

func (n *node) looked() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.looks
}

// pass lets some seconds pass.
func (n *node) pass(seconds int) {
	n.t.Helper()
	for range seconds {
		looks := n.looked()
		n.clock.Step(time.Second)
		n.eventually("it has looked", func() bool { return n.looked() > looks })
	}
}

func (n *node) eventually(what string, holds func() bool) {
	n.t.Helper()
	eventually.Wait{State: func() string { return fmt.Sprintf("the links are %q", n.links()) }}.That(n.t, what, holds)
}

// links returns the names of the files in the folder.
func (n *node) links() string {
	entries, err := os.ReadDir(loglinks.Dir(n.logs))
	if err != nil {
		return err.Error()
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return strings.Join(names, " ")
}

func (n *node) want(links string) {
	n.t.Helper()
	n.eventually("the links are "+links, func() bool { return n.links() == links })
}

func TestALinkIsThereWhileItsContainerIs(t *testing.T) {
	n := newNode(t)
	n.add("a", "id1")
	stop := n.start()
	defer stop()
	n.want("web_shop_a-id1.log")
	n.add("b", "id2")
	n.pass(1)
	n.want("web_shop_a-id1.log web_shop_b-id2.log")
	data, err := os.ReadFile(filepath.Join(loglinks.Dir(n.logs), "web_shop_b-id2.log"))
	if err != nil || string(data) != "id2" {
		t.Errorf("through the link there is %q, %v, want %q", data, err, "id2")
	}
	// While its log is being rotated the link is dead, and stays.
	log := filepath.Join(n.logs, "shop_web_u1", "a", "0.log")
	if err := os.Rename(log, log+".20260501-100000"); err != nil {
		t.Fatal(err)
	}
	n.pass(61)
	n.want("web_shop_a-id1.log web_shop_b-id2.log")
	n.remove("id1")
	n.pass(1)
	n.want("web_shop_b-id2.log")
	// Another program has removed it.
	if err := os.Remove(filepath.Join(loglinks.Dir(n.logs), "web_shop_b-id2.log")); err != nil {
		t.Fatal(err)
	}
	n.pass(61)
	n.want("web_shop_b-id2.log")
}

func TestALinkFollowsALogThatComesLaterAndAContainerThatIsReplaced(t *testing.T) {
	n := newNode(t)
	c := n.add("a", "id1")
	if err := os.Remove(c.LogPath); err != nil {
		t.Fatal(err)
	}
	stop := n.start()
	defer stop()
	n.pass(2)
	n.want("")
	if err := os.WriteFile(c.LogPath, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	n.pass(1)
	n.want("web_shop_a-id1.log")
	n.pass(2)
	n.remove("id1")
	n.add("a", "id2") // as many containers as before
	n.pass(1)
	n.want("web_shop_a-id2.log")
}

func TestARestartTakesLinksOverAndRemovesDeadOnes(t *testing.T) {
	n := newNode(t)
	n.add("a", "id1")
	n.add("b", "id2")
	stop := n.start()
	n.want("web_shop_a-id1.log web_shop_b-id2.log")
	stop()

	// Links of a previous process, and of others.
	dir := loglinks.Dir(n.logs)
	for name, target := range map[string]string{
		"dead_shop_a-id0.log": filepath.Join(n.logs, "shop_dead_u0", "a", "0.log"), "other.log": "/var/lib/elsewhere/0.log", "web_shop_a-id1.txt": filepath.Join(n.logs, "x"),
	} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	n.remove("id2")
	if err := os.Remove(filepath.Join(n.logs, "shop_web_u1", "b", "0.log")); err != nil {
		t.Fatal(err)
	}
	n.mu.Lock()
	n.known = false
	n.mu.Unlock()
	stop = n.start()
	n.pass(3)
	if got := n.links(); !strings.Contains(got, "dead_shop_a-id0.log") || !strings.Contains(got, "web_shop_b-id2.log") {
		t.Errorf("links are removed before the containers are known: %s", got)
	}
	n.mu.Lock()
	n.known = true
	n.mu.Unlock()
	n.pass(1)
	n.want("other.log web_shop_a-id1.log web_shop_a-id1.txt")
	n.remove("id1")
	n.pass(1)
	n.want("other.log web_shop_a-id1.txt")
	stop()
}

func TestANameIsNeverTooLong(t *testing.T) {
	c := loglinks.Container{Namespace: strings.Repeat("n", 63), Pod: strings.Repeat("p", 253), Name: "web", ID: "id"}
	if got := loglinks.Name(c); len(got) != 255 || !strings.HasSuffix(got, ".log") {
		t.Errorf("got %d bytes: %s, want 255 and ending with %q", len(got), got, ".log")
	}
	if got, want := loglinks.Dir("/var/log/pods"), "/var/log/containers"; got != want {
		t.Errorf("got %s, want %s, the kubelet's", got, want)
	}
}

func TestAFolderThatCannotBeMadeIsReportedOnce(t *testing.T) {
	n := newNode(t)
	n.add("a", "id1")
	if err := os.WriteFile(loglinks.Dir(n.logs), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	stop := n.start()
	n.pass(1)
	n.pass(2)
	stop()
	if got := strings.Count(n.log.String(), "not a directory"); got == 0 || strings.Count(n.log.String(), "\n") > 2 {
		t.Errorf("log %s, want one or two lines that say: not a directory", n.log.String())
	}
}
