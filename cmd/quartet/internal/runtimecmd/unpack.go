package runtimecmd

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
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

func replaceFile(from, to string) (err error) {
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return err
	}
	source, err := os.Open(filepath.Clean(from))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, source.Close()) }()
	tmp := to + ".new"
	const flags = os.O_CREATE | os.O_TRUNC | os.O_WRONLY
	target, err := os.OpenFile(filepath.Clean(tmp), flags, 0o700) //nolint:gosec // a program, for root alone
	if err != nil {
		return err
	}
	_, err = io.Copy(target, source)
	if err := errors.Join(err, target.Close()); err != nil {
		return err
	}
	return os.Rename(tmp, to)
}
