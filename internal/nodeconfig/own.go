package nodeconfig

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"

	"github.com/spf13/pflag"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/quartet-node/quartet/internal/statedir"
)

// UsesAPIServer reports whether a service talks to the API server of a cluster, and therefore has --kubeconfig.
func UsesAPIServer(service Service) bool { return service != PLEG }

// addOwnFlags adds the flags of a single service. The other services do not have them, because every accepted flag has
// an effect.
func (f *flags) addOwnFlags(service Service, set *pflag.FlagSet) {
	if UsesAPIServer(service) {
		set.StringVar(
			&f.kubeconfig,
			"kubeconfig",
			"",
			"`FILE` that says how to reach an API server; without it the node is standalone",
		)
	}
	f.join.add(service, set)
	switch service {
	case ConfigMux:
		set.StringVar(
			&f.podManifestPath,
			"pod-manifest-path",
			"",
			"`PATH` of the directory or file of static pods, instead of the file's staticPodPath",
		)
		set.BoolVar(
			&f.standby,
			"standby",
			false,
			"when another configmux of the state directory runs, wait until it ends and take over, instead of refusing to start",
		)
		set.StringVar(
			&f.replay,
			"replay",
			"",
			"`FILE` written by 'quartet updates record', that is replayed as the only source of pods",
		)
		set.Float64Var(
			&f.replaySpeed,
			"replay-speed",
			1,
			"how many `TIMES` faster than recorded to replay; 0 replays without delays",
		)
		addNodes(set, &f.nodes)
		f.hostPrivileges.Add(set)
	case PLEG:
		set.BoolVar(
			&f.readOnly,
			"read-only",
			false,
			"run beside the node's pleg, without its lock; needs another --listen address",
		)
	case SyncLoop:
		set.BoolVar(
			&f.configmuxObjects,
			"configmux-objects",
			false,
			"get config maps, secrets, claims and services from a configmux of a site, its --nodes, and not from the API server",
		)
		set.StringVar(
			&f.podLogsDir,
			"pod-logs-dir",
			"",
			"`DIR` for the logs of containers, as the runtime sees it, instead of the file's podLogsDir",
		)
		set.StringVar(
			&f.cgroupRoot,
			"cgroup-root",
			"",
			"`PATH` of the cgroup that the cgroups of pods are made in, instead of the file's cgroupRoot",
		)
		set.StringVar(
			&f.hostRoot,
			"host-root",
			"/",
			"`DIR` where the machine's root is mounted, for a syncloop in a container: syncloop changes its root to it, so that all paths except that of --config are the machine's",
		)
		f.hostPrivileges.Add(set)
		f.credentials.Add(set)
		f.shadow.add(set)
		AddAllowUnauthenticatedAPI(set, &f.openAPI)
	case NodeStatus:
	}
}

// ownFlags evaluates the flags of addOwnFlags.
func (f *flags) ownFlags(service Service, cfg *Config, fail failure) {
	cfg.Standby, cfg.ReadOnly = f.standby, f.readOnly
	f.joining(service, cfg, fail)
	if f.kubeconfig != "" {
		cfg.Kubeconfig = f.kubeconfigPath(cfg.AwaitKubeconfig, fail)
	}
	if f.readOnly && cfg.Listen == cfg.Peers.Of(service) {
		fail(
			"read-only",
			"needs an address of its own, for the node's pleg serves on %s: add --listen unix:///PATH",
			cfg.Listen,
		)
	}
	for flag, path := range map[string]string{"pod-manifest-path": f.podManifestPath, "pod-logs-dir": f.podLogsDir, "cgroup-root": f.cgroupRoot} {
		if f.given(flag) && (!filepath.IsAbs(path) || path != filepath.Clean(path)) {
			fail(flag, "%q must be an absolute path without . and .. and a closing slash", path)
		}
	}
	if service == ConfigMux || service == SyncLoop {
		cfg.HostPrivileges = f.hostPrivileges.privileges(fail)
	}
	if service == ConfigMux {
		f.replayed(cfg, fail)
		f.site(cfg, fail)
	}
	if service == SyncLoop {
		if cfg.ConfigmuxObjects = f.configmuxObjects; f.configmuxObjects && f.kubeconfig == "" {
			fail("configmux-objects", "the objects of pods of a node without --kubeconfig always come from configmux: leave it out")
		}
		if !filepath.IsAbs(f.hostRoot) {
			fail("host-root", "%q must be an absolute path, for example /host", f.hostRoot)
		}
		cfg.HostRoot, cfg.AllowUnauthenticatedAPI = filepath.Clean(f.hostRoot), f.openAPI
		f.credentialProviders(cfg, fail)
		f.shadowed(cfg, fail)
	}
}

// kubeconfigPath returns the absolute path of the kubeconfig after checking that it is readable; an awaited one may be
// missing, and one on a failing disk is read again with each request. In a container with the machine's root elsewhere
// it is a path of the machine, which is checked after syncloop has changed its root.
func (f *flags) kubeconfigPath(awaited bool, fail failure) string {
	if f.given("host-root") && filepath.Clean(f.hostRoot) != "/" {
		if !filepath.IsAbs(f.kubeconfig) {
			fail("kubeconfig", "%q must be an absolute path of the machine, as --host-root is given", f.kubeconfig)
		}
		return f.kubeconfig
	}
	path, err := readableFile(f.kubeconfig)
	if awaited && errors.Is(err, fs.ErrNotExist) || statedir.OnFailingDisk(err) {
		path, err = filepath.Abs(f.kubeconfig)
	}
	if err != nil {
		fail(
			"kubeconfig",
			"%w: name a file that exists and may be read, or leave the flag out for a node without an API server",
			err,
		)
	}
	return path
}

// readableFile returns the absolute path of a file after reading a byte of it.
func readableFile(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close() //nolint:errcheck // nothing was written
	if _, err := file.Read(make([]byte, 1)); err != nil {
		if errors.Is(err, io.EOF) {
			err = fmt.Errorf("%s is empty", path)
		}
		return "", err
	}
	return filepath.Abs(path)
}

// replayed sets the recording and its speed.
func (f *flags) replayed(cfg *Config, fail failure) {
	cfg.Replay, cfg.ReplaySpeed = f.replay, f.replaySpeed
	if f.given("replay") && (!filepath.IsAbs(f.replay) || f.replay != filepath.Clean(f.replay)) {
		fail("replay", "%q must be an absolute path without . and .. and a closing slash", f.replay)
	}
	if f.given("replay-speed") && !f.given("replay") {
		fail("replay-speed", "there is nothing to replay: name the recording with --replay")
	}
	for _, flag := range privilegeFlags {
		if f.given("replay") && f.hostPrivileges.isGiven(flag) {
			fail(flag.name, "the pods of a recording are given as they were recorded: leave the flag out with --replay")
		}
	}
	if !(f.replaySpeed >= 0) || math.IsInf(f.replaySpeed, 1) {
		fail("replay-speed", "%v: must be a number of 0 or more, for example 10", f.replaySpeed)
	}
}

// overridePaths replaces the paths of the file by those of the flags.
func (f *flags) overridePaths(cfg *kubeletconfigv1beta1.KubeletConfiguration) {
	if f.given("pod-manifest-path") {
		cfg.StaticPodPath = f.podManifestPath
	}
	if f.given("pod-logs-dir") {
		cfg.PodLogsDir = f.podLogsDir
	}
	if f.given("cgroup-root") {
		cfg.CgroupRoot = f.cgroupRoot
	}
}
