package preparecmd

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/machineuuid"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/statedir"
)

// The users and the group of the systemd units, see deploy/systemd/quartet.conf. The user of a service is
// unitUserPrefix with its name.
const (
	unitUserPrefix = "quartet-"
	unitGroup      = "quartet"
)

// replacedSuffix ends the name of a file of a unit in whose place root's service has written another one.
const replacedSuffix = ".replaced"

// unit is a service whose systemd unit runs as a user of its own. Its files are in a directory of its own: NAME of the
// state directory. Where a service of root has a file, there is a link to it, so that a service of an earlier version
// that is started there finds what its pods need.
type unit struct {
	service layout.Service
	// stateDir is the state directory of the node, and own that of the unit.
	stateDir, own string
	uid, gid      int
}

// filesOf returns the files that a service keeps in the state directory; none for a service whose unit runs as root.
func filesOf(service layout.Service) []string {
	switch service {
	case layout.ConfigMux:
		return []string{"applied", "secrets.key", "configmux-manifests.json", "api-pods"}
	case layout.NodeStatus:
		return []string{"nodestatus.json", "graceful_node_shutdown_state"}
	case layout.PLEG, layout.SyncLoop:
	}
	return nil
}

// runUnit gives the files of a service to the user of its systemd unit, or with undo back to root.
func runUnit(l layout.Layout, service layout.Service, undo bool, out io.Writer) error {
	if filesOf(service) == nil {
		return fmt.Errorf("--unit %s: must be %s or %s, whose units have a user of their own",
			service, layout.ConfigMux, layout.NodeStatus)
	}
	u := unit{service: service, stateDir: l.StateDir(), own: filepath.Join(l.StateDir(), string(service))}
	if undo {
		if err := u.takeBack(); err != nil {
			return fmt.Errorf("giving the files of %s back to root: %w", service, err)
		}
		if err := takeSockets(l.ServiceDir(service)); err != nil {
			return err
		}
		fmt.Fprintf(out, "the files of %s are root's, in %s\n", service, u.stateDir)
		return nil
	}
	var err error
	if u.uid, u.gid, err = unitIDs(service); err != nil {
		return err
	}
	if err := u.give(); err != nil {
		return fmt.Errorf("giving the files of %s to its user: %w", service, err)
	}
	if err := nameUnits(l.SocketDir()); err != nil {
		return err
	}
	fmt.Fprintf(out, "the files of %s are in %s\n", service, u.own)
	return nil
}

// unitIDs returns the user and the group of a service's unit.
func unitIDs(service layout.Service) (uid, gid int, err error) {
	const remedy = "install deploy/systemd/quartet.conf in /etc/sysusers.d and run systemd-sysusers"
	known, err := user.Lookup(unitUserPrefix + string(service))
	if err != nil {
		return 0, 0, fmt.Errorf("the user of the unit: %w: %s", err, remedy)
	}
	group, err := user.LookupGroup(unitGroup)
	if err != nil {
		return 0, 0, fmt.Errorf("the group of the units: %w: %s", err, remedy)
	}
	uid, uidErr := strconv.Atoi(known.Uid)
	gid, gidErr := strconv.Atoi(group.Gid)
	return uid, gid, errors.Join(uidErr, gidErr)
}

// give moves the files of a service of root into the directory of its unit.
func (u unit) give() error {
	if err := u.letPass(); err != nil {
		return err
	}
	if err := (directory{path: u.own, uid: u.uid, gid: u.gid, mode: 0o700}).make(); err != nil {
		return err
	}
	for _, name := range filesOf(u.service) {
		if err := u.moveIn(name); err != nil {
			return err
		}
	}
	if u.service == layout.NodeStatus {
		if err := errors.Join(machineuuid.Save(u.own), u.giveCluster()); err != nil {
			return err
		}
	}
	return chownAll(u.own, u.uid, u.gid)
}

// letPass makes the state directory, and lets the group of the units pass through it, if not everybody may.
func (u unit) letPass() error {
	const private, passGroup, passAll = 0o700, 0o010, 0o001
	if err := os.MkdirAll(u.stateDir, private); err != nil {
		return err
	}
	info, err := os.Stat(u.stateDir)
	if err != nil || info.Mode()&passAll != 0 {
		return err
	}
	return errors.Join(os.Lchown(u.stateDir, -1, u.gid), os.Chmod(u.stateDir, info.Mode().Perm()|passGroup))
}

// target is where the link of a name leads, relative to the state directory.
func (u unit) target(name string) string { return filepath.Join(string(u.service), name) }

// moveIn moves a file into the directory of the unit and leaves a link. If it was interrupted, the next call goes on.
func (u unit) moveIn(name string) error {
	flat, own := filepath.Join(u.stateDir, name), filepath.Join(u.own, name)
	info, err := os.Lstat(flat)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	case info.Mode().Type() == fs.ModeSymlink:
		if to, err := os.Readlink(flat); err != nil || to != u.target(name) {
			return errors.Join(err, fmt.Errorf("%s is a link to %s: put what it leads to in its place", flat, to))
		}
		return nil
	default:
		// A service of root has run since, and what it wrote is newer.
		if err := replaced(own); err != nil {
			return err
		}
		if err := os.Rename(flat, own); err != nil {
			return err
		}
	}
	if _, err := os.Lstat(own); err != nil {
		return ignoreMissing(err)
	}
	return os.Symlink(u.target(name), flat)
}

// replaced sets a file of the unit aside, in whose place another one is put.
func replaced(own string) error {
	if _, err := os.Lstat(own); err != nil {
		return ignoreMissing(err)
	}
	aside := own + replacedSuffix
	if err := os.RemoveAll(aside); err != nil {
		return err
	}
	return os.Rename(own, aside)
}

// takeBack moves the files of the unit to where a service of root has them.
func (u unit) takeBack() error {
	for _, name := range filesOf(u.service) {
		if err := u.moveOut(name); err != nil {
			return err
		}
	}
	return nil
}

// takeSockets removes the directory of sockets of a unit that has ended, because a service of root refuses to have its
// own in the directory of another user. Root's stays.
func takeSockets(dir string) error {
	if (directory{path: dir}).isOwn() {
		return nil
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("removing the sockets of a unit: %w", err)
	}
	return nil
}

func (u unit) moveOut(name string) error {
	flat, own := filepath.Join(u.stateDir, name), filepath.Join(u.own, name)
	info, err := os.Lstat(own)
	if err != nil {
		return ignoreMissing(err)
	}
	// The user of the unit may have put a link there, which root would follow.
	if !info.IsDir() && !info.Mode().IsRegular() {
		return fmt.Errorf("%s is neither a file nor a directory: remove it", own)
	}
	to, err := os.Readlink(flat)
	switch {
	case err == nil && to == u.target(name):
		if err := os.Remove(flat); err != nil {
			return err
		}
	case !errors.Is(err, fs.ErrNotExist):
		return nil //nolint:nilerr // a service of root has written a newer one
	}
	if err := os.Rename(own, flat); err != nil {
		return err
	}
	return chownAll(flat, 0, 0)
}

// chownAll gives a file, or a directory with what is in it, to a user. It follows no link, and changes no file that has
// another name elsewhere, because the user who could write here may have made it.
func chownAll(path string, uid, gid int) error {
	parent, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer parent.Close() //nolint:errcheck // nothing was written to it
	return fs.WalkDir(parent.FS(), filepath.Base(path), func(name string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := parent.Lstat(name)
		if err != nil {
			return err
		}
		owner, ok := info.Sys().(*syscall.Stat_t)
		if !ok || int(owner.Uid) == uid && int(owner.Gid) == gid {
			return nil
		}
		if !info.IsDir() && owner.Nlink > 1 {
			return fmt.Errorf("%s has another name elsewhere: remove one of them", filepath.Join(parent.Name(), name))
		}
		return parent.Lchown(name, uid, gid)
	})
}

// nameUnits names the users of the units in the file of users, which may have lines of the operator.
func nameUnits(dir string) error {
	const mode, dirMode = 0o644, 0o755 // each client reads it
	if err := os.MkdirAll(dir, dirMode); err != nil {
		return fmt.Errorf("making the directory of the sockets: %w", err)
	}
	path := filepath.Join(dir, rpc.UsersFile)
	content, err := os.ReadFile(filepath.Clean(path))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("reading the users of the services: %w", err)
	}
	lines := strings.Split(strings.TrimRight(string(content), "\n"), "\n")
	for _, service := range []layout.Service{layout.ConfigMux, layout.NodeStatus} {
		if line := fmt.Sprintf("%s %s%[1]s", service, unitUserPrefix); !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	text := strings.TrimLeft(strings.Join(lines, "\n"), "\n") + "\n"
	if err := statedir.WriteIfChanged(path, []byte(text), mode); err != nil {
		return fmt.Errorf("writing the users of the services: %w", err)
	}
	return nil
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
