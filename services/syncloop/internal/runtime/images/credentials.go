package images

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/kubernetes/pkg/credentialprovider"

	"github.com/quartet-node/quartet/internal/telemetry"
)

// DockerConfigs reads the credentials of docker configuration files. The node has them for all of its pods. The files
// are read for each pull, so that a change applies at once.
type DockerConfigs struct {
	// files are tried in this order; the first one that exists and can be read is used.
	files  []dockerConfig
	logger *slog.Logger
}

type dockerConfig struct {
	path string
	// read returns the credentials of the file.
	read func(path string) (credentialprovider.DockerConfig, error)
}

// NewDockerConfigs uses the kubelet's paths: config.json in the root directory, and in .docker of home and of /; if
// none of them exists, the older .dockercfg in the root directory, home and /. It reads no file.
func NewDockerConfigs(rootDir, home string, logger *slog.Logger) *DockerConfigs {
	d := &DockerConfigs{logger: logger}
	for _, dir := range []string{rootDir, filepath.Join(home, ".docker"), "/.docker"} {
		d.files = append(d.files, dockerConfig{filepath.Join(dir, "config.json"), credentialprovider.ReadSpecificDockerConfigJSONFile})
	}
	for _, dir := range []string{rootDir, home, "/"} {
		d.files = append(d.files, dockerConfig{filepath.Join(dir, ".dockercfg"), readDockercfg})
	}
	return d
}

func readDockercfg(path string) (credentialprovider.DockerConfig, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return credentialprovider.ReadDockerConfigFileFromBytes(content)
}

// For returns the credentials for a repository, for example "registry.example.com/shop/web", the most specific first;
// none if no file exists, or the file has no entry for the registry or a path in it. A file that cannot be used is
// logged and skipped, as in the kubelet.
func (d *DockerConfigs) For(ctx context.Context, repository string) []*runtimeapi.AuthConfig {
	for _, file := range d.files {
		config, err := file.read(file.path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			d.logger.WarnContext(ctx, "cannot use a file with registry credentials: check that it is readable and in docker's JSON format",
				telemetry.KeyFile, file.path, telemetry.KeyError, err)
			continue
		}
		return d.lookUp(ctx, file.path, config, repository)
	}
	return nil
}

// lookUp returns the credentials for a repository in a configuration.
func (d *DockerConfigs) lookUp(
	ctx context.Context,
	path string,
	config credentialprovider.DockerConfig,
	repository string,
) []*runtimeapi.AuthConfig {
	usable := withAddress(config)
	if n := len(config) - len(usable); n > 0 {
		d.logger.WarnContext(ctx, "ignoring entries of a file with registry credentials that are not addresses of registries",
			telemetry.KeyFile, path, "entries", n) // only the number, because an entry may contain a credential by mistake
	}
	keyring := &credentialprovider.BasicDockerKeyring{}
	keyring.Add(nil, usable)
	var auths []*runtimeapi.AuthConfig
	for _, c := range credentialsOf(keyring, repository) {
		auths = append(auths, c.auth)
	}
	return auths
}

// withAddress returns a configuration without the entries whose registry is not an address.
func withAddress(config credentialprovider.DockerConfig) credentialprovider.DockerConfig {
	usable := maps.Clone(config)
	maps.DeleteFunc(usable, func(registry string, _ credentialprovider.DockerConfigEntry) bool {
		if !strings.HasPrefix(registry, "https://") && !strings.HasPrefix(registry, "http://") {
			registry = "https://" + registry
		}
		address, err := url.Parse(registry)
		return err != nil || address.Host == ""
	})
	return usable
}

// credential is a credential for a pull, with its source.
type credential struct {
	auth *runtimeapi.AuthConfig
	// source is nil for a credential of the node, which all its pods may use. Hash is the hash of its content then.
	source *credentialprovider.CredentialSource
	hash   string
}

// ofNode returns credentials that all pods of the node may use.
func ofNode(auths []*runtimeapi.AuthConfig) []credential {
	all := make([]credential, 0, len(auths))
	for _, auth := range auths {
		all = append(all, credential{auth: auth})
	}
	return all
}

// credentialsOf returns the credentials that a keyring has for a repository, the most specific first.
func credentialsOf(keyring credentialprovider.DockerKeyring, repository string) []credential {
	found, _ := keyring.Lookup(repository)
	all := make([]credential, 0, len(found))
	for _, c := range found {
		all = append(all, credential{source: c.Source, hash: c.AuthConfigHash, auth: &runtimeapi.AuthConfig{
			Username: c.Username, Password: c.Password, Auth: c.Auth, ServerAddress: c.ServerAddress,
			IdentityToken: c.IdentityToken, RegistryToken: c.RegistryToken,
		}})
	}
	return all
}
