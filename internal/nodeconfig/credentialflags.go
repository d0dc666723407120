package nodeconfig

import (
	"fmt"
	"path/filepath"

	"github.com/spf13/pflag"
)

// The flags of credential providers, named as in the kubelet.
const (
	flagProvidersConfig = "image-credential-provider-config"
	flagProvidersBinDir = "image-credential-provider-bin-dir"
)

// CredentialProviderFlags holds the flags of credential providers as given. The commands that start a node have them
// too.
type CredentialProviderFlags struct {
	// Config is the path of a CredentialProviderConfig, or of a directory with such files; BinDir is the directory of the
	// plugins. Both are empty for a node without plugins.
	Config, BinDir string
}

// Add adds the flags to a set.
func (f *CredentialProviderFlags) Add(set *pflag.FlagSet) {
	set.StringVar(
		&f.Config,
		flagProvidersConfig,
		"",
		"`FILE|DIR` with a CredentialProviderConfig (kubelet.config.k8s.io/v1), or a directory of such .json, .yaml and .yml files: which plugins return credentials for which registries",
	)
	set.StringVar(&f.BinDir, flagProvidersBinDir, "", "`DIR` with the plugins that --"+flagProvidersConfig+" names")
}

// Args returns the flags that were given.
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

// Read reads the files that the flags name, see ReadCredentialProviders. Without the flags it returns the zero value.
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
		fail(flagProvidersBinDir, "needs --%s with the file that assigns the plugins to registries", flagProvidersConfig)
	}
}

// Absolute makes the paths absolute, for a process with another working directory.
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

// credentialProviders sets the paths of the credential providers. The files are read later, after syncloop has changed
// its root to the machine's.
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
