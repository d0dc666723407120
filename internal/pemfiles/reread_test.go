package pemfiles_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quartet-node/quartet/internal/pemfiles"
)

func TestFilesThatChangeAreReadAgain(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	reads := 0
	files := pemfiles.NewRereader(func(contents [][]byte) (string, error) {
		reads++
		text := string(contents[0]) + string(contents[1])
		if strings.Contains(text, "half") {
			return "", errors.New("does not fit")
		}
		return text, nil
	}, a, b)
	want := func(text string, good bool, problem string) {
		t.Helper()
		got, ok, err := files.Get()
		if got != text || ok != good || (err == nil) != (problem == "") || (err != nil && !strings.Contains(err.Error(), problem)) {
			t.Errorf("Get() = %q, %v, %v, want %q, %v and an error with %q", got, ok, err, text, good, problem)
		}
	}
	replace := func(path, text string) {
		t.Helper()
		if err := errors.Join(os.WriteFile(path+".new", []byte(text), 0o600), os.Rename(path+".new", path)); err != nil {
			t.Fatal(err)
		}
	}
	want("", false, a)
	if _, _, err := files.Get(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Get() error = %v, want %v", err, fs.ErrNotExist)
	}
	replace(a, "1")
	replace(b, "2")
	want("12", true, "")
	want("12", true, "")
	if reads != 1 {
		t.Errorf("read %d times what has not changed", reads)
	}
	replace(b, "half")
	want("12", true, a+": does not fit")
	replace(b, "3")
	want("13", true, "")
	if err := os.Remove(a); err != nil {
		t.Fatal(err)
	}
	want("13", true, a)
	replace(a, "4")
	want("43", true, "")
}
