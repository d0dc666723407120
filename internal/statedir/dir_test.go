package statedir_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/quartet-node/quartet/internal/statedir"
)

// TestADirectoryOfRecordsIsThereWhateverIsInItsPlace opens directories that are missing, files, or well.
func TestADirectoryOfRecordsIsThereWhateverIsInItsPlace(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "records")
	write := func() error { return statedir.ReplaceFile(filepath.Join(dir, "a"), []byte("a"), 0o600) }
	if entries, err := statedir.OpenDir(dir); len(entries) > 0 || err != nil {
		t.Errorf("a missing directory: %v, %v, want no entries", entries, err)
	}
	if err := write(); err != nil {
		t.Fatal(err)
	}
	if entries, err := statedir.OpenDir(dir); len(entries) != 1 || err != nil {
		t.Errorf("a directory with a file: %v, %v, want one entry", entries, err)
	}
	if err := errors.Join(os.RemoveAll(dir), os.WriteFile(dir, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	var damaged *statedir.DamagedError
	if _, err := statedir.OpenDir(dir); !errors.As(err, &damaged) || damaged.Aside != dir+".damaged" {
		t.Errorf("a file in the place of the directory: %v, want a %T", err, damaged)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := statedir.WriteIn(dir, write); err != nil {
		t.Errorf("writing into a missing directory: %v", err)
	}
}

// TestADirectoryInThePlaceOfAFileIsSetAside also if one was set aside before, which is kept.
func TestADirectoryInThePlaceOfAFileIsSetAside(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file.json")
	var names []string
	for range 3 {
		if err := os.MkdirAll(filepath.Join(path, "content"), 0o700); err != nil {
			t.Fatal(err)
		}
		var content struct{}
		var damaged *statedir.DamagedError
		if err := statedir.LoadChecked(path, "", &content, nil); !errors.As(err, &damaged) || damaged.Aside == "" {
			t.Fatalf("LoadChecked() = %v, want it set aside", err)
		}
		names = append(names, filepath.Base(damaged.Aside))
	}
	if want := []string{"file.json.damaged", "file.json.1.damaged", "file.json.2.damaged"}; !slices.Equal(names, want) {
		t.Errorf("the new names are %q, want %q", names, want)
	}
	if err := statedir.WriteFileAtomic(path, nil, 0o600); err != nil {
		t.Error(err)
	}
}

// TestAFileThatHasItsContentIsNotWritten, because each start would otherwise need room on the disk.
func TestAFileThatHasItsContentIsNotWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	var before os.FileInfo
	for i, write := range []struct {
		text string
		mode os.FileMode
		same bool
	}{{"a", 0o600, false}, {"a", 0o600, true}, {"a", 0o644, false}, {"b", 0o644, false}, {"b", 0o644, true}} {
		if err := statedir.WriteIfChanged(path, []byte(write.text), write.mode); err != nil {
			t.Fatal(err)
		}
		after, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := before != nil && os.SameFile(before, after); got != write.same || after.Mode() != write.mode {
			t.Errorf("write %d: the same file %v, mode %v, want %v, %v", i, got, after.Mode(), write.same, write.mode)
		}
		before = after
	}
}

// TestAWriterOfAHangingDiskKeepsTheLatest has the first write hang.
func TestAWriterOfAHangingDiskKeepsTheLatest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w statedir.Writer
		hang, written := make(chan struct{}), make(chan int, 10)
		write := func(n int) func() error {
			return func() error {
				if n == 1 {
					<-hang
				}
				written <- n
				return nil
			}
		}
		for n := range 4 {
			if err := w.Write(write(n)); (n == 0) != (err == nil) || n > 0 && !errors.Is(err, statedir.ErrHangs) {
				t.Errorf("write %d: %v, want an error of those during the hang", n, err)
			}
		}
		close(hang)
		synctest.Wait()
		if err := w.Write(write(4)); err != nil {
			t.Error(err)
		}
		close(written)
		var got []int
		for n := range written {
			got = append(got, n)
		}
		if want := []int{0, 1, 3, 4}; !slices.Equal(got, want) {
			t.Errorf("written %v, want %v", got, want)
		}
	})
}
