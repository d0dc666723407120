package nodeconfig

import (
	"errors"
	"io/fs"
	"path/filepath"

	"github.com/spf13/pflag"

	"github.com/quartet-node/quartet/internal/statedir"
)

// externalCloud is the only valid cloud provider.
const externalCloud = "external"

// certDirName is the default of --cert-dir, in the state directory.
const certDirName = "pki"

// joinFlags holds the flags of a node that joins its cluster by itself. nodestatus joins the cluster; the other
// services wait for it.
type joinFlags struct {
	bootstrapKubeconfig, certDir string
	cloudProvider                string
	awaitKubeconfig              bool
}

func (f *joinFlags) add(service Service, set *pflag.FlagSet) {
	switch service {
	case ConfigMux, SyncLoop:
		set.BoolVar(
			&f.awaitKubeconfig,
			"await-kubeconfig",
			false,
			"the file of --kubeconfig need not be there yet: nodestatus writes it when the node joins its cluster",
		)
		if service == SyncLoop {
			set.StringVar(
				&f.certDir,
				"cert-dir",
				"",
				"`DIR` for the certificate that the HTTP API is served with, unless the file names one (default: \"pki\" in the state directory)",
			)
		}
	case NodeStatus:
		set.StringVar(
			&f.bootstrapKubeconfig,
			"bootstrap-kubeconfig",
			"",
			"`FILE` that says how to reach an API server until the node has a certificate of its own; --kubeconfig is written then",
		)
		set.StringVar(
			&f.certDir,
			"cert-dir",
			"",
			"`DIR` for the certificate that the node has from joining (default: \"pki\" in the state directory)",
		)
		set.StringVar(
			&f.cloudProvider,
			"cloud-provider",
			"",
			"external when a `PROVIDER` outside of the node initializes the Node and gives it its addresses; empty for none",
		)
	case PLEG:
	}
}

// joining evaluates joinFlags. It runs before the kubeconfig is looked for.
func (f *flags) joining(service Service, cfg *Config, fail failure) {
	cfg.AwaitKubeconfig = f.join.awaitKubeconfig
	switch f.join.cloudProvider {
	case "":
	case externalCloud:
		cfg.ExternalCloud = true
	default:
		fail("cloud-provider", "%q is not known: must be %s, or empty for none", f.join.cloudProvider, externalCloud)
	}
	if service == NodeStatus || service == SyncLoop {
		cfg.CertDir = filepath.Join(cfg.StateDir, certDirName)
		if f.join.certDir != "" {
			cfg.CertDir = f.join.certDir
		}
		if !filepath.IsAbs(cfg.CertDir) {
			fail("cert-dir", "%q must be an absolute path", cfg.CertDir)
		}
	}
	if f.join.bootstrapKubeconfig != "" {
		path, err := readableFile(f.join.bootstrapKubeconfig)
		if errors.Is(err, fs.ErrNotExist) && f.hasKubeconfig() {
			// The file was removed after the node had joined, as kubeadm does.
			path, err = filepath.Abs(f.join.bootstrapKubeconfig)
		}
		if statedir.OnFailingDisk(err) {
			path, err = filepath.Abs(f.join.bootstrapKubeconfig)
		}
		if err != nil {
			fail(
				"bootstrap-kubeconfig",
				"%w: name a file that exists and may be read, or leave the flag out when the node has a --kubeconfig",
				err,
			)
		}
		cfg.BootstrapKubeconfig, cfg.AwaitKubeconfig = path, true
	}
	if cfg.AwaitKubeconfig && f.kubeconfig == "" {
		flag := "await-kubeconfig"
		if service == NodeStatus {
			flag = "bootstrap-kubeconfig"
		}
		fail(flag, "needs --kubeconfig with the path of the file that is written when the node has joined")
	}
}

// hasKubeconfig reports whether the file of --kubeconfig exists, be its disk well or not.
func (f *flags) hasKubeconfig() bool {
	if f.kubeconfig == "" {
		return false
	}
	_, err := readableFile(f.kubeconfig)
	return err == nil || statedir.OnFailingDisk(err)
}
