// Package preparecmd implements `quartet prepare`: it prepares a machine to run the four services as containers. Each
// service gets its own directories, owned by its user: one for its state, and one for its sockets. Mounts of the
// machine become shared, so that one container can mount a volume for another.
package preparecmd

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/quartet-node/quartet/cmd/quartet/internal/hostns"
	"github.com/quartet-node/quartet/cmd/quartet/internal/target"
	"github.com/quartet-node/quartet/internal/bundle"
	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/logind"
	"github.com/quartet-node/quartet/internal/pidlimit"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/statedir"
)

// The users of the images. pleg and syncloop run as root because the container runtime's socket belongs to root.
const (
	group          = 10240
	userConfigMux  = 10241
	userNodeStatus = 10244
)

// runtimeDir is the directory of the sockets of the bundled runtime, in the state directory. It is not below the
// directory of the services' sockets, which every container sees.
const runtimeDir = "cri"

// clusterDir is the directory of a node's cluster credentials, in the state directory.
const clusterDir = "cluster"

type options struct {
	stateDir, manifests, unit, config string
	enterHost, undo                   bool
}

// Command is `quartet prepare`.
func Command() *cobra.Command {
	var opts options
	cmd := &cobra.Command{
		Use:   "prepare",
		Short: "Create the directories and the mount for services in containers",
		Long: `Create the directories of a node whose four services are containers, as deploy/compose runs them: for each service one
for its sockets and one for its state, owned by its user, and those of the cluster, of pods, logs and manifests. If the
machine's mounts are private, as without systemd, those of the root and of the state directory become shared, so that
a mount made by one container is visible to the others. The users of the services are written into the file "users"
beside the directories of the sockets. Links there let programs of v0.1.0 find the sockets. The command is idempotent;
other existing files are not changed.

With --unit it does what the systemd unit of configmux or nodestatus needs instead: it gives the files of that service
to the user of the unit, in a directory of its own, and leaves links in their places. --undo gives them back to root.
With --config as well, logind waits with a shutdown of the machine for as long as that configuration gives to pods: the
user of nodestatus cannot extend its delay. A problem with that is printed, and is no failure.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			l, err := layout.New(opts.stateDir)
			if err != nil {
				return err
			}
			if opts.unit != "" {
				if err := runUnit(l, layout.Service(opts.unit), opts.undo, cmd.OutOrStdout()); err != nil || opts.undo {
					return err
				}
				if layout.Service(opts.unit) == layout.NodeStatus && opts.config != "" {
					lengthen(cmd.Context(), opts.config, logind.DropIn, cmd.OutOrStdout())
				}
				return nil
			}
			if opts.manifests == "" {
				opts.manifests = l.Manifests()
			}
			do := func() error { return run(l, opts, cmd.OutOrStdout()) }
			if opts.enterHost {
				return hostns.Do(do)
			}
			return do()
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	target.AddFlag(flags, &opts.stateDir)
	flags.StringVar(
		&opts.manifests,
		"manifests",
		"",
		"`directory` that pods are read from; manifests in the state directory when empty",
	)
	flags.BoolVar(&opts.enterHost, "enter-host", false, "for a container with pid: host: do it on the machine")
	flags.StringVar(&opts.unit, "unit", "",
		"give the files of a `SERVICE`, configmux or nodestatus, to the user of its systemd unit")
	flags.StringVar(&opts.config, "config", "",
		"with --unit nodestatus: `file` of the configuration whose shutdown periods logind has to allow")
	flags.BoolVar(&opts.undo, "undo", false, "make the mounts private again that were made shared; files stay")
	return cmd
}

func run(l layout.Layout, opts options, out io.Writer) error {
	if opts.undo {
		return bundle.UnshareMounts(l)
	}
	if l.SocketDir() != l.PIDDir() {
		return fmt.Errorf(
			"--state-dir %s: the sockets of this state directory would not be in it (its path is the default one or too long): choose another, "+
				"for example /var/lib/quartet-compose",
			l.StateDir(),
		)
	}
	for _, d := range directories(l) {
		if err := d.make(); err != nil {
			return err
		}
	}
	if err := writeUsers(l); err != nil {
		return err
	}
	if err := linkEarlier(l); err != nil {
		return err
	}
	// These services need the machine's process limit, which a container in another PID namespace cannot read.
	for _, service := range []layout.Service{layout.SyncLoop, layout.NodeStatus} {
		if err := pidlimit.Save("/proc", filepath.Join(l.StateDir(), string(service))); err != nil {
			return err
		}
	}
	// It belongs to the operator: it is created if it is missing, and otherwise not changed.
	const mode = 0o755 // configmux, which is not root, reads the manifests
	if err := os.MkdirAll(opts.manifests, mode); err != nil {
		return fmt.Errorf("making the directory of the manifests: %w: name another with --manifests", err)
	}
	fmt.Fprintf(out, "%s is ready; pods are read from %s\n", l.StateDir(), opts.manifests)
	return bundle.ShareMounts(l, func(note string) { fmt.Fprintln(out, note) })
}

// directory is a directory of a service.
type directory struct {
	path     string
	uid, gid int
	mode     os.FileMode
	// anew replaces what is not a directory of the user: earlier versions let each service make names in its parent.
	anew bool
}

// directories returns the directories in the order of creation.
func directories(l layout.Layout) []directory {
	dirs := []directory{
		{path: l.StateDir(), mode: 0o711},
		// Only root makes names here.
		{path: l.SocketDir(), mode: 0o711},
	}
	for _, service := range layout.Services() {
		dirs = append(dirs,
			directory{path: filepath.Join(l.StateDir(), string(service)), uid: userOf(service), gid: group, mode: 0o700},
			// The group may connect to the sockets here, and only the service's user may make and remove them.
			directory{path: l.ServiceDir(service), uid: userOf(service), gid: group, mode: 0o710, anew: true},
		)
	}
	return append(dirs, []directory{
		{path: filepath.Join(l.StateDir(), runtimeDir), mode: 0o700},
		// nodestatus writes the kubeconfig and the certificate of a cluster's node here, and the others read them.
		{path: filepath.Join(l.StateDir(), clusterDir), uid: userNodeStatus, gid: group, mode: 0o750},
		{path: l.Root(), mode: 0o711},
		{path: l.Logs(), mode: 0o711},
		{path: l.PodLogs(), mode: 0o755},
	}...)
}

// userOf returns the user of a service.
func userOf(service layout.Service) int {
	switch service {
	case layout.ConfigMux:
		return userConfigMux
	case layout.NodeStatus:
		return userNodeStatus
	case layout.PLEG, layout.SyncLoop:
	}
	return 0
}

// linkEarlier lets programs of v0.1.0, which have all sockets in one directory, find those of today. The links are
// relative, because containers have the directory at another place. The socket of a running process of v0.1.0 stays.
func linkEarlier(l layout.Layout) error {
	for _, service := range layout.Services() {
		for _, socket := range []string{l.Socket(service), l.MetricsSocket(service)} {
			earlier := layout.EarlierSocket(socket)
			target, err := filepath.Rel(filepath.Dir(earlier), socket)
			if err != nil {
				return err
			}
			if current, err := os.Readlink(earlier); err == nil && current == target {
				continue
			}
			if info, err := os.Lstat(earlier); err == nil && info.Mode().Type() == os.ModeSocket && serves(earlier) {
				continue
			}
			if err := os.RemoveAll(earlier); err != nil {
				return fmt.Errorf("removing a socket of an earlier version: %w", err)
			}
			if err := os.Symlink(target, earlier); err != nil {
				return fmt.Errorf("making the name of %s for earlier versions: %w", socket, err)
			}
		}
	}
	return nil
}

// serves reports whether a process listens on a socket.
func serves(path string) bool {
	_, err := rpc.ServerOf("unix://" + path)
	return err == nil
}

// writeUsers writes the users of the services for the clients of their sockets.
func writeUsers(l layout.Layout) error {
	const mode = 0o644 // each client reads it
	text := fmt.Sprintf("# SERVICE USER, written by quartet prepare. Root may be each service.\n%s %d\n%s %d\n",
		layout.ConfigMux, userConfigMux, layout.NodeStatus, userNodeStatus)
	if err := statedir.WriteFileAtomic(filepath.Join(l.SocketDir(), rpc.UsersFile), []byte(text), mode); err != nil {
		return fmt.Errorf("writing the users of the services: %w", err)
	}
	return nil
}

// make creates the directory, or sets the owner and mode of an existing one.
func (d directory) make() error {
	var err error
	if d.anew && !d.isOwn() {
		err = os.RemoveAll(d.path)
	}
	if err == nil {
		err = os.MkdirAll(d.path, d.mode.Perm())
	}
	if err == nil {
		err = errors.Join(os.Chown(d.path, d.uid, d.gid), os.Chmod(d.path, d.mode))
	}
	switch {
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("making %s: %w: run the command as root", d.path, err)
	case err != nil:
		return fmt.Errorf("making %s: %w: choose a --state-dir on a file system that can be written", d.path, err)
	}
	return nil
}

// isOwn reports whether the directory exists and is its user's. A link to one is not.
func (d directory) isOwn() bool {
	info, err := os.Lstat(d.path)
	if err != nil {
		return false
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	return ok && info.IsDir() && int(owner.Uid) == d.uid
}
