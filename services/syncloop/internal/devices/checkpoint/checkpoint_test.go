package checkpoint_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quartet-node/quartet/services/syncloop/internal/devices/checkpoint"
)

func content() checkpoint.Content {
	return checkpoint.Content{
		Entries: []checkpoint.PodDevicesEntry{{
			PodUID: "u1", ContainerName: "main", ResourceName: "example.com/gpu",
			DeviceIDs: checkpoint.DevicesPerNUMA{-1: {"a"}, 1: {"b", "c"}}, AllocResp: []byte{10, 2, 8, 1},
		}},
		Registered: map[string][]string{"example.com/gpu": {}},
	}
}

func TestWhatIsWrittenIsRead(t *testing.T) {
	dir := t.TempDir()
	if _, err := checkpoint.Read(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a file: %v, want %v", err, fs.ErrNotExist)
	}
	answers := content() // an empty answer is not an unknown one
	answers.Entries = append(answers.Entries, answers.Entries[0], answers.Entries[0])
	answers.Entries[1].AllocResp, answers.Entries[2].AllocResp = nil, []byte{}
	for _, want := range []checkpoint.Content{content(), answers, {Registered: map[string][]string{}}, {}} {
		if err := checkpoint.Write(dir, want); err != nil {
			t.Fatal(err)
		}
		got, err := checkpoint.Read(dir)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%v, -want +got\n%s", err, diff)
		}
	}
	if info, err := os.Stat(filepath.Join(dir, checkpoint.File)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file is %v, %v, want mode 0600", info.Mode(), err)
	}
}

// TestADamagedFileIsSetAside checks that each change of the content is noticed, that the file is kept for people, and
// that the next read finds no file.
func TestADamagedFileIsSetAside(t *testing.T) {
	dir := t.TempDir()
	if err := checkpoint.Write(dir, content()); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, checkpoint.File)
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{
		"empty": {}, "cut": good[:len(good)/2], "no JSON": []byte("nonsense"), "another type": []byte(`[1]`),
		"another device": bytes.Replace(good, []byte(`"b"`), []byte(`"x"`), 1), "null": []byte("null"),
	} {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := checkpoint.Read(dir)
		corrupt := (*checkpoint.CorruptError)(nil)
		if !errors.As(err, &corrupt) {
			t.Errorf("%s: error = %v, want a CorruptError", name, err)
			continue
		}
		if kept, err := os.ReadFile(corrupt.Aside); err != nil || !bytes.Equal(kept, data) {
			t.Errorf("%s: what was set aside is %q, %v", name, kept, err)
		}
		if _, err := checkpoint.Read(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: the next read fails with %v, want %v", name, err, fs.ErrNotExist)
		}
	}
}
