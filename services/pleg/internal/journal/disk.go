package journal

import (
	"errors"
	"os"

	"github.com/quartet-node/quartet/internal/statedir"
)

// fileMode lets only the owner read the file, as all of the state.
const fileMode = 0o600

// OnDisk returns the File with this path, in a directory that exists.
func OnDisk(path string) File { return &disk{path: path} }

type disk struct {
	path string
	// end is open for appending after the first Replace; nil before.
	end *os.File
}

func (d *disk) Read() ([]byte, error) { return os.ReadFile(d.path) }

func (d *disk) Replace(data []byte) error {
	if err := statedir.WriteFileAtomic(d.path, data, fileMode); err != nil {
		return err
	}
	if err := d.Close(); err != nil {
		return err
	}
	end, err := os.OpenFile(d.path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	d.end = end
	return nil
}

func (d *disk) Append(data []byte) error {
	if d.end == nil {
		return errors.New("appending to a file that is not open")
	}
	_, err := d.end.Write(data)
	return err
}

func (d *disk) SetAside() (string, error) {
	return statedir.Rename(d.path)
}

func (d *disk) Close() error {
	if d.end == nil {
		return nil
	}
	err := d.end.Close()
	d.end = nil
	return err
}
