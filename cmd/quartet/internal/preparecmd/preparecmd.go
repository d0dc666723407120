// Package preparecmd implements `quartet prepare`: it prepares a machine to run the four services as containers. Each
// service gets its own directories, owned by its user, and all share the directory of the sockets. Mounts of the
// machine become shared, so that one container can mount a volume for another.
package preparecmd

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/quartet-node/quartet/cmd/quartet/internal/hostns"
	"github.com/quartet-node/quartet/cmd/quartet/internal/target"
	"github.com/quartet-node/quartet/internal/bundle"
	"github.com/quartet-node/quartet/internal/layout"
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

// clusterDir is the directory of a node's cluster credentials, in the state directory.
const clusterDir = "cluster"

type options struct {
	stateDir, manifests string
	enterHost, undo     bool
}

// Command is `quartet prepare`.
func Command() *cobra.Command {
	var opts options
	cmd := &cobra.Command{
		Use:   "prepare",
		Short: "Create the directories and the mount for services in containers",
		Long: `Create the directories of a node whose four services are containers, as deploy/compose runs them: one for the sockets,
one for the state of each service, owned by its user, and those of the cluster, of pods, logs and manifests. If the
machine's mounts are private, as without systemd, those of the root and of the state directory become shared, so that
a mount made by one container is visible to the others. The users of the services are written into the file "users"
beside the sockets. The command is idempotent; other existing files are not changed.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			l, err := layout.New(opts.stateDir)
			if err != nil {
				return err
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
}

// directories returns the directories in the order of creation.
func directories(l layout.Layout) []directory {
	own := func(s layout.Service, uid int) directory {
		return directory{path: filepath.Join(l.StateDir(), string(s)), uid: uid, gid: group, mode: 0o700}
	}
	return []directory{
		{path: l.StateDir(), mode: 0o711},
		// Each service creates its sockets here, and only their owner may remove them.
		{path: l.SocketDir(), gid: group, mode: 0o771 | os.ModeSticky},
		own(layout.ConfigMux, userConfigMux),
		own(layout.PLEG, 0),
		own(layout.SyncLoop, 0),
		own(layout.NodeStatus, userNodeStatus),
		// nodestatus writes the kubeconfig and the certificate of a cluster's node here, and the others read them.
		{path: filepath.Join(l.StateDir(), clusterDir), uid: userNodeStatus, gid: group, mode: 0o750},
		{path: l.Root(), mode: 0o711},
		{path: l.Logs(), mode: 0o711},
		{path: l.PodLogs(), mode: 0o755},
	}
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
	err := os.MkdirAll(d.path, d.mode.Perm())
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
