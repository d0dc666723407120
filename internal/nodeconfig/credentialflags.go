package nodeconfig

import (
	"fmt"
	"path/filepath"

	"github.com/spf13/pflag"
)

// The flags of credential providers, by the kubelet's names.
const (
	flagProvidersConfig = "image-credential-provider-config"
	flagProvidersBinDir = "image-credential-provider-bin-dir"
)

// CredentialProviderFlags say which credential providers a node has, as they were given. The commands that start a node take them too.
type CredentialProviderFlags struct {
	// Config is the path of a CredentialProviderConfig, or of a directory of such files; BinDir that of the directory with the plugins.
	// Both are empty for a node without any.
	Config, BinDir string
}

// Add adds the flags to a set.
func (f *CredentialProviderFlags) Add(set *pflag.FlagSet) {
	set.StringVar(&f.Config, flagProvidersConfig, "", "`FILE|DIR` with a CredentialProviderConfig (kubelet.config.k8s.io/v1), or a directory of such .json, .yaml and .yml files: which plugins have credentials of which registries")
	set.StringVar(&f.BinDir, flagProvidersBinDir, "", "`DIR` with the plugins that --"+flagProvidersConfig+" names")
}

// Args are the flags that were given.
func (f *CredentialProviderFlags) Args() []string {
	var args []string
	if f.Config != "" {
		args = append(args, "--"+flagProvidersConfig+"="+f.Config)
	}
	if f.BinDir != "" {
		args = append(args, "--"+flagProvidersBinDir+"="+f.BinDir)
	}
	return args
}

// Read reads what the flags name; see ReadCredentialProviders. Without the flags there are none.
func (f *CredentialProviderFlags) Read() (CredentialProviders, error) {
	var errs Errors
	f.check(func(flag, format string, args ...any) {
		errs = append(errs, fmt.Errorf("--"+flag+": "+format, args...))
	})
	if len(errs) > 0 {
		return CredentialProviders{}, errs
	}
	if f.Config == "" {
		return CredentialProviders{}, nil
	}
	return ReadCredentialProviders(f.Config, f.BinDir)
}

// check reports one of the flags without the other.
func (f *CredentialProviderFlags) check(fail failure) {
	switch {
	case f.Config != "" && f.BinDir == "":
		fail(flagProvidersConfig, "needs --%s with the directory of the plugins", flagProvidersBinDir)
	case f.Config == "" && f.BinDir != "":
		fail(flagProvidersBinDir, "needs --%s with the file that says what the plugins are for", flagProvidersConfig)
	}
}

// Absolute makes the paths absolute by the working directory, for a process that has another.
func (f *CredentialProviderFlags) Absolute() error {
	for _, path := range []*string{&f.Config, &f.BinDir} {
		if *path == "" {
			continue
		}
		abs, err := filepath.Abs(*path)
		if err != nil {
			return err
		}
		*path = abs
	}
	return nil
}

// credentialProviders says where the credential providers are. Nothing is looked at before the machine's root is the process's.
func (f *flags) credentialProviders(cfg *Config, fail failure) {
	given := f.credentials
	elsewhere := f.given("host-root") && filepath.Clean(f.hostRoot) != "/"
	for flag, path := range map[string]string{flagProvidersConfig: given.Config, flagProvidersBinDir: given.BinDir} {
		if elsewhere && path != "" && !filepath.IsAbs(path) {
			fail(flag, "%q must be an absolute path of the machine, as --host-root is given", path)
		}
	}
	if err := given.Absolute(); err != nil {
		fail(flagProvidersConfig, "%w", err)
	}
	given.check(fail)
	cfg.CredentialProviders = given
}
