package e2e

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quartet-node/quartet/test/otlpsink"
)

// content has the sources of a pod's volumes; both keys of the config map have the same value.
const content = `apiVersion: v1
kind: ConfigMap
metadata: {name: settings, namespace: e2e}
data: {first: %[1]q, second: %[1]q}
---
apiVersion: v1
kind: Secret
metadata: {name: login, namespace: e2e}
stringData: {password: %[2]q}
`

const reading = `apiVersion: v1
kind: Pod
metadata: {name: reading, namespace: e2e, labels: {app: reading}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: %[1]q
    args: [sleep]
    volumeMounts:
    - {name: settings, mountPath: /settings}
    - {name: login, mountPath: /login}
    - {name: about, mountPath: /about}
    - {name: all, mountPath: /all}
    - {name: none, mountPath: /none}
  volumes:
  - {name: settings, configMap: {name: settings}}
  - {name: login, secret: {secretName: login, defaultMode: 0400}}
  - {name: about, downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}]}}
  - name: all
    projected:
      sources:
      - {configMap: {name: settings, items: [{key: first, path: deep/first, mode: 0600}]}}
      - {secret: {name: login, items: [{key: password, path: deep/password}]}}
      - {downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}}
  - {name: none, configMap: {name: there-is-none, optional: true}}
`

// TestVolumesHaveWhatTheirObjectsHave checks the files that the containers see, with secrets on tmpfs: the pod waits
// for missing objects. It gets changes of them without a restart and atomically, including changes while syncloop was
// down. The value of a secret is nowhere on the disk, in no log, trace or answer, and nothing is left after the pod.
func TestVolumesHaveWhatTheirObjectsHave(t *testing.T) {
	const hidden = "e2e-volume-s3cret"
	file := filepath.Join(t.TempDir(), "content.yaml")
	apply := func(value, password string) {
		t.Helper()
		if err := os.WriteFile(file, fmt.Appendf(nil, content, value, password), 0o600); err != nil {
			t.Fatal(err)
		}
		quartet(t, "apply", "-f", file)
	}
	place(t, "reading.yaml", fmt.Sprintf(reading, image))
	awaitFailedMount(t, "reading", `MountVolume.SetUp failed for volume "settings" : `, `configmap "settings" not found`)
	awaitFailedMount(t, "reading", `MountVolume.SetUp failed for volume "all" : `, `secret "login" not found`)
	apply("0", hidden+"-0")
	t.Cleanup(func() {
		if _, err := node.Command(context.Background(), "delete", "-f", file); err != nil {
			t.Error(err)
		}
	})
	p := await(t, "reading", "Ready once the objects are there", ready)
	root := inside(t, p, "main")
	has := func(pairs ...string) bool {
		for i := 0; i < len(pairs); i += 2 {
			if got, err := os.ReadFile(root + pairs[i]); err != nil || string(got) != pairs[i+1] {
				return false
			}
		}
		return true
	}
	for path, want := range map[string]struct {
		text string
		mode os.FileMode
	}{
		"/settings/first": {"0", 0o644}, "/settings/second": {"0", 0o644}, "/login/password": {hidden + "-0", 0o400},
		"/about/labels": {`app="reading"`, 0o644}, "/all/deep/first": {"0", 0o600}, "/all/deep/password": {hidden + "-0", 0o644}, "/all/name": {p.Name, 0o644},
	} {
		got, err := os.ReadFile(root + path)
		info, statErr := os.Stat(root + path)
		if errors.Join(err, statErr) != nil || strings.TrimSpace(string(got)) != want.text || info.Mode() != want.mode {
			t.Errorf("%s has %q and is %v, %v; want %q, %v", path, got, info, errors.Join(err, statErr), want.text, want.mode)
		}
	}
	if err := os.WriteFile(root+"/settings/mine", nil, 0o600); !errors.Is(err, unix.EROFS) {
		t.Errorf("the container can write into the volume of a config map: %v", err)
	}
	before := mounts(t, p)
	for _, path := range []string{"volumes/kubernetes.io~secret/login", "volumes/kubernetes.io~downward-api/about", "volumes/kubernetes.io~projected/all"} {
		if before[path].Kind != "tmpfs" {
			t.Errorf("%s is on %q, want tmpfs", path, before[path].Kind)
		}
	}

	halves := watchHalves(t, root+"/settings/..data", "first", "second")
	for i := 1; i <= 3; i++ {
		apply(fmt.Sprint(i), fmt.Sprintf("%s-%d", hidden, i))
		awaitThat(t, "the change is in the container", func() bool {
			text, secret := fmt.Sprint(i), fmt.Sprintf("%s-%d", hidden, i)
			return has("/settings/first", text, "/settings/second", text, "/login/password", secret, "/all/deep/first", text, "/all/deep/password", secret)
		})
	}
	for _, half := range halves() {
		t.Errorf("a reader has seen %s", half)
	}
	old := pid(t, "syncloop")
	kill(t, "syncloop")
	apply("4", hidden+"-4")
	awaitNewPID(t, "syncloop", old)
	awaitThat(t, "what was changed meanwhile is in the container", func() bool { return has("/settings/second", "4", "/login/password", hidden+"-4") })
	if after := mounts(t, p); !maps.Equal(before, after) {
		t.Errorf("mounted was %v, and is %v after changes and a kill of syncloop", before, after)
	}
	if again := await(t, "reading", "Ready", ready); fmt.Sprint(containerIDs(again)) != fmt.Sprint(containerIDs(p)) || again.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Error("the container was restarted")
	}

	for _, args := range [][]string{{"describe", "pod", "e2e/reading"}, {"events", "e2e/reading", "-o", "json"}, {"get", "secrets", "-n", "e2e", "-o", "yaml"}, {"get", "pods", "-o", "yaml"}, {"updates"}} {
		if out := quartet(t, args...); strings.Contains(out, hidden) ||
			strings.Contains(out, base64.StdEncoding.EncodeToString([]byte(hidden))) {
			t.Errorf("quartet %s says the secret", strings.Join(args, " "))
		}
	}
	if slices.ContainsFunc(traces.Spans(), func(span otlpsink.Span) bool {
		return strings.Contains(fmt.Sprint(span), hidden)
	}) {
		t.Error("the secret is in a trace")
	}
	if len(filesWith(t, filepath.Join(node.PodDir(p), "volumes"), "4")) == 0 {
		t.Error("what is in the config map is not found on the disk, so that nothing could be found there")
	}
	for _, path := range filesWith(t, node.Layout.StateDir(), hidden) {
		t.Errorf("the secret is in %s", path)
	}
	takeAway(t, "reading.yaml")
	awaitGone(t, "reading")
	awaitNothingLeft(t, p)
}

// watchHalves reads files of a folder repeatedly, with one open of the folder each time, until the returned function is
// called: it returns an error when their texts ever differed. Files of a folder that was just replaced may be missing.
func watchHalves(t *testing.T, dir string, names ...string) func() []string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	seen := map[string]bool{}
	var watching sync.WaitGroup
	watching.Go(func() {
		for ctx.Err() == nil {
			if half := halfOf(dir, names); half != "" {
				seen[half] = true
			}
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Microsecond):
			}
		}
	})
	return func() []string {
		cancel()
		watching.Wait()
		return slices.Collect(maps.Keys(seen))
	}
}

func halfOf(dir string, names []string) string {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return "" // the folder was replaced during this read
	}
	defer root.Close() //nolint:errcheck // it was only read
	var texts []string
	for _, name := range names {
		text, err := root.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			return ""
		}
		if err != nil {
			return err.Error()
		}
		texts = append(texts, string(text))
	}
	if len(slices.Compact(slices.Clone(texts))) != 1 {
		return fmt.Sprintf("%q of %q", texts, names)
	}
	return ""
}

// filesWith returns the files on the disk below a folder that contain a text, or its base64 form in the JSON of an API
// object; mounted file systems are skipped.
func filesWith(t *testing.T, dir, text string) (found []string) {
	t.Helper()
	device := func(path string) uint64 {
		info, err := os.Lstat(path)
		if err != nil {
			return 0
		}
		return info.Sys().(*syscall.Stat_t).Dev //nolint:forcetypeassert // it is Linux
	}
	disk := device(dir)
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case entry.IsDir() && device(path) != disk:
			return fs.SkipDir
		case !entry.Type().IsRegular() || device(path) != disk:
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if bytes.Contains(data, []byte(text)) || bytes.Contains(data,
			[]byte(base64.StdEncoding.EncodeToString([]byte(text)))) {
			found = append(found, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}
