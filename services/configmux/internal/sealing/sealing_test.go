package sealing_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/quartet-node/quartet/internal/metrics/metricstest"
	"github.com/quartet-node/quartet/services/configmux/internal/sealing"
	"github.com/quartet-node/quartet/test/require"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func keyring(t testing.TB) *sealing.Keyring {
	t.Helper()
	return sealing.NewKeyring(filepath.Join(t.TempDir(), "secrets.key"), os.Geteuid())
}

// A sealed value can be opened only with the key, for the same subject and unchanged; and its content is not visible.
func TestWhatIsSealedCanNeitherBeReadNorChangedNorMoved(t *testing.T) {
	k, other := keyring(t), keyring(t)
	rapid.Check(t, func(r *rapid.T) {
		data := rapid.SliceOf(rapid.Byte()).Draw(r, "data")
		about, elsewhere := rapid.String().Draw(r, "about"), rapid.String().Draw(r, "elsewhere")
		box, err := k.Seal(data, about)
		if err != nil {
			r.Fatal(err)
		}
		if got, err := k.Open(box, about); err != nil || !bytes.Equal(got, data) {
			r.Fatalf("opening it: %q, %v", got, err)
		}
		if again, err := k.Seal(data, about); err != nil || bytes.Equal(again.Data, box.Data) {
			r.Fatalf("sealing it again gives the same, %v", err)
		}
		if len(data) > 7 && bytes.Contains(box.Data, data) {
			r.Fatal("it is to be seen")
		}
		if _, err := k.Open(box, elsewhere); elsewhere != about && !errors.Is(err, sealing.ErrDamaged) {
			r.Fatalf("in another place: %v", err)
		}
		changed := sealing.Box{Key: box.Key, Data: bytes.Clone(box.Data)}
		changed.Data[rapid.IntRange(0, len(changed.Data)-1).Draw(r, "at")] ^= byte(rapid.IntRange(1, 255).Draw(r, "bits"))
		if _, err := k.Open(changed, about); !errors.Is(err, sealing.ErrDamaged) {
			r.Fatalf("changed: %v", err)
		}
		var unknown *sealing.UnknownKeyError
		if _, err := other.Open(box, about); !errors.As(err, &unknown) || unknown.Key != box.Key {
			r.Fatalf("without the key: %v", err)
		}
	})
}

// For any sequence of key operations and restarts, a sealed value can be opened until a rotation that has not sealed it
// again is finished.
func TestRotationsLoseNothingThatWasSealedAgain(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		dir, err := os.MkdirTemp("", "q")
		if err != nil {
			r.Fatal(err)
		}
		defer os.RemoveAll(dir) //nolint:errcheck // a test's
		open := func() *sealing.Keyring { return sealing.NewKeyring(filepath.Join(dir, "secrets.key"), os.Geteuid()) }
		k := open()
		check := func(err error) {
			if err != nil {
				r.Fatal(err)
			}
		}
		seal := func() sealing.Box {
			box, err := k.Seal([]byte("s"), "a")
			check(err)
			return box
		}
		box := seal()
		for range rapid.IntRange(1, 20).Draw(r, "steps") {
			switch rapid.SampledFrom([]string{"begin", "seal anew and finish", "seal anew", "restart", "key"}).Draw(r, "step") {
			case "begin":
				check(k.Begin())
			case "seal anew and finish":
				box = seal()
				check(k.Finish())
			case "seal anew":
				box = seal()
			case "restart":
				k = open()
			case "key":
				key, err := k.Current()
				check(err)
				if fresh := seal(); fresh.Key != key {
					r.Fatalf("sealed with %s, and the key is %s", fresh.Key, key)
				}
			}
			data, err := k.Open(box, "a")
			check(err)
			if string(data) != "s" {
				r.Fatalf("got %q", data)
			}
		}
		check(k.Begin())
		box = seal()
		check(k.Finish())
		if _, err := k.Open(box, "a"); err != nil {
			r.Fatalf("after the end: %v", err)
		}
		if rotating, err := k.Rotating(); rotating || err != nil {
			r.Fatalf("after the end there are more keys than one, %v", err)
		}
	})
}

func TestTheKeyFileIsMadeAtTheFirstUseAndIsItsOwnersAlone(t *testing.T) {
	k := keyring(t)
	if key, err := k.Current(); key != "" || err != nil {
		t.Errorf("before: %q, %v, want an empty text", key, err)
	}
	if _, err := os.Stat(k.Path()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("before: %v, want no file", err)
	}
	registry := prometheus.NewRegistry()
	k.Expose(registry)
	metricstest.Want(t, registry, 0, "quartet_configmux_secrets_key_changed_timestamp_seconds")
	// Concurrent callers create one key.
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if _, err := k.Seal([]byte("s"), "a"); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	info, err := os.Stat(k.Path())
	must(t, err)
	if info.Mode() != 0o600 {
		t.Errorf("mode %v, want 0600", info.Mode())
	}
	if rotating, err := k.Rotating(); rotating || err != nil {
		t.Errorf("there are more keys than one, %v", err)
	}
	if metricstest.Value(t, registry, "quartet_configmux_secrets_key_changed_timestamp_seconds") == 0 {
		t.Error("the metric has no time")
	}
}

func TestAKeyFileThatIsNotToBeTrustedIsRefusedAndSaysWhatToDo(t *testing.T) {
	good := keyring(t)
	_, err := good.Seal([]byte("s"), "a")
	must(t, err)
	content, err := os.ReadFile(good.Path())
	must(t, err)
	for what, test := range map[string]struct {
		spoil func(path string) error
		want  string
	}{
		"wider mode":   {func(path string) error { return os.Chmod(path, 0o604) }, "has the mode 0604, so that others may have read the key: it must be 0600; run chmod 0600 "},
		"another's":    {func(path string) error { return os.Chown(path, 12345, -1) }, "belongs to user 12345, but configmux runs as user 0: run chown 0 "},
		"cut off":      {func(path string) error { return os.WriteFile(path, content[:len(content)/2], 0o600) }, "is damaged: restore it from a backup"},
		"empty":        {func(path string) error { return os.WriteFile(path, nil, 0o600) }, "is damaged: restore it from a backup"},
		"without keys": {func(path string) error { return os.WriteFile(path, []byte(`{"keys":[]}`), 0o600) }, "is damaged"},
		"with a flipped bit in a key": {func(path string) error {
			changed := bytes.Clone(content)
			changed[bytes.Index(content, []byte(`"key":"`))+len(`"key":"`)] ^= 1
			return os.WriteFile(path, changed, 0o600)
		}, "is damaged: restore it from a backup"},
		"with a short key": {func(path string) error {
			return os.WriteFile(path, []byte(`{"keys":[{"id":"a","key":"YQ=="}]}`), 0o600)
		}, "has a damaged key"},
		"a link": {func(path string) error {
			return errors.Join(os.Rename(path, path+".away"), os.Symlink(path+".away", path))
		}, "is a link: put the file itself there"},
		"a directory": {func(path string) error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o700)) }, "is no regular file"},
	} {
		t.Run(what, func(t *testing.T) {
			if what == "another's" {
				require.Root(t, "giving a file away")
			}
			path := filepath.Join(t.TempDir(), "secrets.key")
			must(t, os.WriteFile(path, content, 0o600))
			must(t, test.spoil(path))
			k := sealing.NewKeyring(path, os.Geteuid())
			_, err := k.Seal([]byte("s"), "a")
			var unusable *sealing.FileError
			if !errors.As(err, &unusable) || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), path) {
				t.Errorf("got %v, want %s", err, test.want)
			}
			if err := k.Begin(); !errors.As(err, &unusable) {
				t.Errorf("a rotation: %v, want a %T", err, unusable)
			}
		})
	}
}

func TestLeftoversOfAnInterruptedWriteAreRemoved(t *testing.T) {
	k := keyring(t)
	left := filepath.Join(filepath.Dir(k.Path()), ".secrets.key.tmp-1")
	must(t, os.WriteFile(left, []byte("a key that was to be gone"), 0o600))
	_, err := k.Current()
	must(t, err)
	if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v, want it gone", err)
	}
}

func TestAKeyFileThatIsPutBackIsUsedWithoutARestart(t *testing.T) {
	k := keyring(t)
	box, err := k.Seal([]byte("s"), "a")
	must(t, err)
	must(t, os.Rename(k.Path(), k.Path()+".backup"))
	again := sealing.NewKeyring(k.Path(), os.Geteuid())
	if _, err := again.Open(box, "a"); err == nil {
		t.Error("it was opened without a key")
	}
	must(t, os.Rename(k.Path()+".backup", k.Path()))
	if data, err := again.Open(box, "a"); string(data) != "s" || err != nil {
		t.Errorf("with the file back: %q, %v, want %q", data, err, "s")
	}
}
