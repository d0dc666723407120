package runtimecmd

import (
	"io/fs"
	"os"
	"path/filepath"

	"github.com/quartet-node/quartet/internal/bundle"
)

// imageFiles returns the files of the image: the command itself at the root, and the files of bin/ from "make build" in
// /runtime.
func imageFiles() map[string]string {
	return map[string]string{"/quartet": "quartet", "/runtime": "."}
}

// unpack copies files and directories to a directory. It replaces each file with a rename, so that running programs
// keep their file.
func unpack(files map[string]string, to string) error {
	for from, name := range files {
		err := filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			below, err := filepath.Rel(from, path)
			if err != nil {
				return err
			}
			target := filepath.Join(to, name, below)
			if entry.IsDir() {
				return os.MkdirAll(target, 0o700)
			}
			return replaceFile(path, target)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func replaceFile(from, to string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return err
	}
	tmp := to + ".new"
	if err := bundle.CopyFile(from, tmp, 0o700); err != nil { // a program, for root alone
		return err
	}
	return os.Rename(tmp, to)
}
