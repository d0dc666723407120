package executor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/containerspec"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/terminationmessages"
)

// hostsPath is the path of the hosts file in a container and on the host.
const hostsPath = "/etc/hosts"

// podDir returns the path of a pod's folder of files.
func (m *Manager) podDir(uid string) string {
	return filepath.Join(m.cfg.RootDir, "pods", uid)
}

// terminationFile returns the path of a container's termination message on the node.
func (m *Manager) terminationFile(uid, container string, restartCount int) string {
	return terminationmessages.File(m.cfg.RootDir, uid, container, restartCount)
}

// mounts writes the files that a container gets and returns its mounts: first the volumes in their order, then the
// files.
func (m *Manager) mounts(
	ctx context.Context,
	pod *v1.Pod,
	c *v1.Container,
	restartCount int,
	ips []string,
	in mountInputs,
) ([]*runtimeapi.Mount, error) {
	mounts, err := m.volumeMounts(ctx, pod, c, in)
	if err != nil {
		return nil, err
	}
	mountsAt := func(path string) bool {
		return slices.ContainsFunc(c.VolumeMounts, func(v v1.VolumeMount) bool { return v.MountPath == path })
	}
	// A pod on the host's network gets the host's own file from the runtime, unless the pod adds aliases.
	if (len(ips) > 0 && !pod.Spec.HostNetwork || len(pod.Spec.HostAliases) > 0) && !mountsAt(hostsPath) {
		path, err := m.writeHosts(pod, ips)
		if err != nil {
			return nil, err
		}
		mounts = append(mounts, &runtimeapi.Mount{ContainerPath: hostsPath, HostPath: path, SelinuxRelabel: true})
	}
	if c.TerminationMessagePath != "" && !mountsAt(c.TerminationMessagePath) {
		path := m.terminationFile(string(pod.UID), c.Name, restartCount)
		// As with the kubelet, only the message is lost: on a read-only disk a container that has ended starts again.
		if err := writeFile(path, nil, 0o666); err != nil {
			m.cfg.Logger.WarnContext(ctx, "the file of a termination message cannot be made: the container starts without it; "+
				"check the disk of the root directory",
				telemetry.KeyPod, podName(pod), telemetry.KeyContainer, c.Name, telemetry.KeyError, err)
			return mounts, nil
		}
		mounts = append(mounts, &runtimeapi.Mount{
			ContainerPath: c.TerminationMessagePath, HostPath: path, SelinuxRelabel: true,
		})
	}
	return mounts, nil
}

// writeHosts writes the pod's hosts file if its content differs. It writes in place and never replaces the file,
// because running containers have it mounted.
func (m *Manager) writeHosts(pod *v1.Pod, ips []string) (string, error) {
	var base []byte
	if pod.Spec.HostNetwork {
		var err error
		if base, err = os.ReadFile(hostsPath); err != nil {
			return "", fmt.Errorf("hosts file: %w", err)
		}
	}
	path := filepath.Join(m.podDir(string(pod.UID)), "etc-hosts")
	content := containerspec.Hosts(pod, ips, m.nodeNow().ClusterDomain, base)
	if now, err := os.ReadFile(path); err == nil && string(now) == string(content) {
		return path, nil
	}
	if err := writeFile(path, content, 0o644); err != nil {
		return "", fmt.Errorf("hosts file: %w", err)
	}
	return path, nil
}

// writeFile writes a file with exactly this mode, and creates its parent folders.
func writeFile(path string, content []byte, mode os.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return err
	}
	if err := os.WriteFile(path, content, mode); err != nil {
		return err
	}
	return os.Chmod(path, mode) // regardless of the umask
}
