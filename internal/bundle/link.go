package bundle

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// ensureBridge creates a bridge unless it exists. A kernel without bridges is detected before the first pod.
func ensureBridge(name string) error {
	err := linkIoctl(name, unix.SIOCBRADDBR)
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	return err
}

// removeBridge takes a bridge down and removes it. A missing bridge is no error.
func removeBridge(name string) error {
	err := withLinkSocket(func(fd int) error {
		req, err := unix.NewIfreq(name)
		if err != nil {
			return err
		}
		if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, req); err != nil {
			return err
		}
		req.SetUint16(req.Uint16() &^ unix.IFF_UP)
		return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req)
	})
	if err == nil {
		err = linkIoctl(name, unix.SIOCBRDELBR)
	}
	if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENXIO) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("removing the bridge %s: %w", name, err)
	}
	return nil
}

// linkIoctl sends a request whose only argument is the link's name, the first field of an ifreq.
func linkIoctl(name string, request uint) error {
	return withLinkSocket(func(fd int) error {
		req, err := unix.NewIfreq(name)
		if err != nil {
			return err
		}
		return unix.IoctlIfreq(fd, request, req)
	})
}

func withLinkSocket(do func(fd int) error) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("opening a socket for links: %w", err)
	}
	return errors.Join(do(fd), unix.Close(fd))
}
