package sealing

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quartet-node/quartet/internal/statedir"
)

const (
	// fileMode lets only the owner read the keys.
	fileMode = 0o600
	// maxFile bounds the size of a key file, in bytes. It is larger than any file of this program.
	maxFile = 64 << 10
)

// FileError is the error of an unusable key file.
type FileError struct{ err error }

// Error returns the reason and the remedy.
func (e *FileError) Error() string { return e.err.Error() }

// Unwrap returns the cause.
func (e *FileError) Unwrap() error { return e.err }

func unusable(format string, args ...any) error { return &FileError{fmt.Errorf(format, args...)} }

// keyFile is the content of the file.
type keyFile struct {
	// Keys lists the keys; the first one seals.
	Keys []key `json:"keys"`
}

// load returns the keys of the file; none if there has never been a file.
func (k *Keyring) load() (keys []key, err error) {
	if err := k.removeLeftovers(); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(k.path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist) && k.hasKeys():
		return nil, unusable(
			"the key file %s has disappeared: restore it from a backup; without one, restart configmux and apply all secrets again",
			k.path,
		)
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case errors.Is(err, unix.ELOOP):
		return nil, unusable("the key file %s is a link: put the file itself there", k.path)
	case err != nil:
		return nil, unusable("cannot read the key file: %w: check its owner and the disk", err)
	}
	defer file.Close() //nolint:errcheck // it was only read
	info, err := file.Stat()
	if err != nil {
		return nil, unusable("cannot read the key file: %w: check the disk", err)
	}
	if err := k.check(info); err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err != nil {
		return nil, unusable("cannot read the key file: %w: check the disk", err)
	}
	var content keyFile
	data, err = statedir.Checked(data, "")
	// The problem is not described because a decoder's error may quote a part of the key.
	if err != nil || len(data) > maxFile || json.Unmarshal(data, &content) != nil || len(content.Keys) == 0 {
		return nil, unusable(
			"the key file %s is damaged: restore it from a backup; without one, remove it and apply all secrets again",
			k.path,
		)
	}
	for _, known := range content.Keys {
		if known.ID == "" || len(known.Secret) != keySize {
			return nil, unusable(
				"the key file %s has a damaged key: restore it from a backup; without one, remove it and apply all secrets again",
				k.path,
			)
		}
	}
	return content.Keys, nil
}

// check returns why a file is not trustworthy: another user could have read the key or written the file.
func (k *Keyring) check(info fs.FileInfo) error {
	if !info.Mode().IsRegular() {
		return unusable(
			"the key file %s is no regular file: remove what is there, or put the file back from a backup",
			k.path,
		)
	}
	if mode := info.Mode().Perm(); mode&^fileMode != 0 {
		return unusable(
			"the key file %s has the mode %04o, so that others may have read the key: it must be %04o; run chmod %04[3]o %[1]s, and then 'quartet secrets rotate-key' for a new key",
			k.path,
			mode,
			fileMode,
		)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return unusable("cannot determine the owner of the key file %s", k.path)
	}
	if int(stat.Uid) != k.uid {
		return unusable(
			"the key file %s belongs to user %d, but configmux runs as user %d: run chown %[3]d %[1]s if the key in it is yours",
			k.path,
			stat.Uid,
			k.uid,
		)
	}
	return nil
}

// store replaces the file.
func (k *Keyring) store(keys []key) error {
	data, err := json.Marshal(keyFile{Keys: keys})
	if err == nil {
		data, err = statedir.WithChecksum(data, "")
	}
	if err != nil {
		return unusable("cannot encode the keys: %w", err)
	}
	if err := statedir.WriteFileAtomic(k.path, data, fileMode); err != nil {
		return unusable(
			"cannot save the key: %w: check that there is space in %s and that it is writable, and try again",
			err,
			filepath.Dir(k.path),
		)
	}
	return nil
}

// removeLeftovers removes temporary files of interrupted writes, because they may contain a removed key.
func (k *Keyring) removeLeftovers() error {
	dir, name := filepath.Split(k.path)
	files, err := os.ReadDir(dir)
	if err != nil {
		return unusable("cannot look for incomplete key files: %w", err)
	}
	for _, file := range files {
		if !strings.HasPrefix(file.Name(), "."+name+".tmp-") {
			continue
		}
		if err := statedir.RemoveFile(filepath.Join(dir, file.Name())); err != nil {
			return unusable("cannot remove an incomplete key file: %w: remove it", err)
		}
	}
	return nil
}

// changedAt returns the time of the last change of the keys; zero if there are none, or the file cannot be examined.
func (k *Keyring) changedAt() time.Time {
	info, err := os.Stat(k.path)
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}
