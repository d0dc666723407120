// Package damage damages the files of a process in each way that a disk, a crash or a person does, one after the other.
package damage

import (
	"bytes"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Kind is a kind of damage.
type Kind struct {
	// Name says what the file is now.
	Name string
	// Shows is true if nothing of the file can pass for its content, so that its process has to say that it is damaged.
	Shows bool
	apply func(path string, content []byte) error
}

// Kinds returns all kinds.
func Kinds() []Kind {
	write := func(change func([]byte) []byte) func(string, []byte) error {
		return func(path string, content []byte) error { return os.WriteFile(path, change(content), 0o600) }
	}
	return []Kind{
		{"truncated", false, write(func(content []byte) []byte { return content[:len(content)/2] })},
		{"empty", false, write(func([]byte) []byte { return nil })},
		{"zeros", true, write(func(content []byte) []byte { return make([]byte, max(1, len(content))) })},
		{"garbage", true, write(func(content []byte) []byte { return bytes.Repeat([]byte("\xff}{\n"), 1+len(content)/4) })},
		{"a flipped bit in a text", true, write(flipped)},
		{"of a later version", false, write(func(content []byte) []byte {
			return bytes.Replace(content, []byte("{"), []byte(`{"later-version": {"reason": ""}, `), 1)
		})},
		{"a directory", true, func(path string, _ []byte) error {
			if err := os.Remove(path); err != nil {
				return err
			}
			return os.MkdirAll(filepath.Join(path, "not", "empty"), 0o700)
		}},
	}
}

// flipped flips a bit in the last text of a JSON object before its checksum, so that it can still be parsed. Of another
// file it flips a bit in the middle.
func flipped(content []byte) []byte {
	changed := bytes.Clone(content)
	before, _, _ := bytes.Cut(content, []byte(`"writtenBy"`))
	at := bytes.LastIndex(before, []byte(`":"`)) + len(`":"`)
	if !bytes.HasPrefix(content, []byte("{")) || at < len(`":"`) {
		at = len(content) / 2
	}
	if at < len(changed) {
		changed[at] ^= 1
	}
	return changed
}

// Each damages each file below a directory in each way, and calls check, which starts the process and looks. Known are
// the patterns of the names of all files; see path.Match. A file without a pattern, and a pattern without a file, fail
// the test. Sockets are no files.
func Each(t *testing.T, dir string, known []string, check func(t *testing.T, file string, kind Kind)) {
	t.Helper()
	files := map[string][]byte{}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		files[path] = content
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	used := map[string]bool{}
	for file, content := range files {
		name, err := filepath.Rel(dir, file)
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(known, func(pattern string) bool {
			ok, err := path.Match(pattern, name)
			return ok && err == nil
		})
		if i < 0 {
			t.Errorf("the file %s is not in the list of the test", name)
			continue
		}
		used[known[i]] = true
		for _, kind := range Kinds() {
			t.Run(strings.ReplaceAll(name, "/", ":")+" "+kind.Name, func(t *testing.T) {
				if err := kind.apply(file, content); err != nil {
					t.Fatal(err)
				}
				check(t, file, kind)
				restore(t, file, content)
			})
		}
	}
	for _, pattern := range known {
		if !used[pattern] {
			t.Errorf("there is no file %s to damage", pattern)
		}
	}
}

// restore puts a file back, and removes what was set aside.
func restore(t *testing.T, file string, content []byte) {
	t.Helper()
	left, err := filepath.Glob(file + "*")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range left {
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
}
