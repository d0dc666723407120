package blockdevice

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// The files of the kernel for loop devices.
const (
	loopControl = "/dev/loop-control"
	backingFile = "/sys/block/%s/loop/backing_file"
)

// loopTries bounds the attempts to get a free loop device, because others take them too.
const loopTries = 10

// holdDevice attaches a loop device to a path of a block device, unless it has one. As long as it is attached the block
// device is open, so that no other one gets its number while a container has it. This is the kubelet's way, and
// survives the process.
func holdDevice(path string) error {
	held, err := loopsOf(path)
	if err != nil || len(held) > 0 {
		return err
	}
	backing, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, unix.EROFS) || errors.Is(err, unix.EACCES) {
		backing, err = os.Open(path)
	}
	if err != nil {
		return err
	}
	control, err := os.OpenFile(loopControl, os.O_RDWR, 0)
	if err != nil {
		return errors.Join(fmt.Errorf("hold the block device: %w", err), backing.Close())
	}
	for range loopTries {
		if err = attachLoop(control, backing); !errors.Is(err, unix.EBUSY) {
			break
		}
	}
	if err != nil {
		err = fmt.Errorf("hold the block device with a loop device: %w", err)
	}
	return errors.Join(err, control.Close(), backing.Close())
}

// attachLoop attaches a free loop device to a file. It fails with EBUSY if another process has just taken it.
func attachLoop(control, backing *os.File) error {
	number, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
	if err != nil {
		return err
	}
	loop, err := os.OpenFile(fmt.Sprintf("/dev/loop%d", number), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	err = unix.IoctlSetInt(int(loop.Fd()), unix.LOOP_SET_FD, int(backing.Fd()))
	return errors.Join(err, loop.Close())
}

// releaseDevice detaches the loop devices of a path.
func releaseDevice(path string) error {
	held, err := loopsOf(path)
	if err != nil {
		return err
	}
	for _, name := range held {
		loop, err := os.OpenFile(filepath.Join("/dev", name), os.O_RDONLY, 0)
		if err != nil {
			return err
		}
		if err = unix.IoctlSetInt(int(loop.Fd()), unix.LOOP_CLR_FD, 0); errors.Is(err, unix.ENXIO) {
			err = nil // it has just been detached
		}
		if err = errors.Join(err, loop.Close()); err != nil {
			return fmt.Errorf("release the block device: %w", err)
		}
	}
	return nil
}

// loopsOf returns the names of the loop devices of a path.
func loopsOf(path string) ([]string, error) {
	all, err := filepath.Glob(fmt.Sprintf(backingFile, "loop*"))
	if err != nil {
		return nil, err
	}
	var names []string
	for _, file := range all {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has just been detached
		}
		if strings.TrimSuffix(string(text), "\n") == path {
			names = append(names, strings.Split(file, "/")[3])
		}
	}
	return names, nil
}
