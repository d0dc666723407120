package nodeconfig

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	kubeletconfigv1 "k8s.io/kubelet/config/v1"
)

// pluginVersion is the version of the plugin protocol that supports tokens.
const pluginVersion = "credentialprovider.kubelet.k8s.io/v1"

// pluginVersions lists the versions of the plugin protocol that the kubelet supports.
var pluginVersions = []string{
	pluginVersion,
	"credentialprovider.kubelet.k8s.io/v1beta1",
	"credentialprovider.kubelet.k8s.io/v1alpha1",
}

// validateCredentialProviders reports providers that the kubelet refuses.
func validateCredentialProviders(providers []kubeletconfigv1.CredentialProvider, errs *problems) {
	if len(providers) == 0 {
		errs.add("providers", "is empty: name at least one provider, or leave out the flags")
	}
	for i, p := range providers {
		at := fmt.Sprintf("providers[%d].", i)
		validateProviderName(at+"name", p.Name, errs)
		switch {
		case p.APIVersion == "":
			errs.add(at+"apiVersion", "is missing: must be "+pluginVersion+", or an older one that the plugin speaks")
		case !slices.Contains(pluginVersions, p.APIVersion):
			errs.add(at+"apiVersion", fmt.Sprintf("is %q, must be one of %s", p.APIVersion, strings.Join(pluginVersions, ", ")))
		}
		if len(p.MatchImages) == 0 {
			errs.add(at+"matchImages", "is empty: name at least one registry, for example registry.example.com or *.example.com")
		}
		for j, match := range p.MatchImages {
			if _, err := url.Parse("https://" + match); err != nil {
				errs.add(
					fmt.Sprintf("%smatchImages[%d]", at, j),
					fmt.Sprintf("%q is no registry: write HOST, HOST:PORT or HOST/PATH, with * for parts of the host's name", match),
				)
			}
		}
		switch d := p.DefaultCacheDuration; {
		case d == nil:
			errs.add(
				at+"defaultCacheDuration",
				"is missing: say for how long credentials are kept when the plugin does not, for example 10m, or 0s",
			)
		case d.Duration < 0:
			errs.add(at+"defaultCacheDuration", fmt.Sprintf("is %s, must be 0 or more", d.Duration))
		}
		if p.TokenAttributes != nil {
			validateTokenAttributes(at, p, errs)
		}
	}
}

// validateProviderName reports a name that is not a file name.
func validateProviderName(at, name string, errs *problems) {
	switch {
	case name == "":
		errs.add(at, "is missing: must be the name of the plugin's file")
	case strings.Contains(name, "/"), name == ".", name == "..":
		errs.add(at, fmt.Sprintf("is %q, must be the name of a file, without a path", name))
	case strings.Contains(name, " "):
		errs.add(at, fmt.Sprintf("is %q, must have no spaces", name))
	}
}

// validateTokenAttributes reports problems with the attributes of service account tokens.
func validateTokenAttributes(at string, p kubeletconfigv1.CredentialProvider, errs *problems) {
	token := p.TokenAttributes
	if p.APIVersion != pluginVersion {
		errs.add(at+"tokenAttributes", "needs apiVersion "+pluginVersion+" of the provider: older ones have no tokens")
	}
	at += "tokenAttributes."
	if token.ServiceAccountTokenAudience == "" {
		errs.add(at+"serviceAccountTokenAudience", "is missing: must be the audience that the plugin wants tokens for")
	}
	switch token.CacheType {
	case kubeletconfigv1.TokenServiceAccountTokenCacheType, kubeletconfigv1.ServiceAccountServiceAccountTokenCacheType:
	case "":
		errs.add(
			at+"cacheType",
			"is missing: must be Token, or ServiceAccount where all pods of a service account may use the same credentials",
		)
	default:
		errs.add(at+"cacheType", fmt.Sprintf("is %q, must be Token or ServiceAccount", token.CacheType))
	}
	switch needs := token.RequireServiceAccount; {
	case needs == nil:
		errs.add(
			at+"requireServiceAccount",
			"is missing: must be true, or false where the plugin also serves pods without a service account",
		)
	case !*needs && len(token.RequiredServiceAccountAnnotationKeys) > 0:
		errs.add(at+"requiredServiceAccountAnnotationKeys", "needs requireServiceAccount: true")
	}
	validateAnnotationKeys(
		at+"requiredServiceAccountAnnotationKeys",
		token.RequiredServiceAccountAnnotationKeys,
		nil,
		errs,
	)
	validateAnnotationKeys(
		at+"optionalServiceAccountAnnotationKeys",
		token.OptionalServiceAccountAnnotationKeys,
		token.RequiredServiceAccountAnnotationKeys,
		errs,
	)
}

// validateAnnotationKeys reports keys that are invalid, duplicate, or also in others.
func validateAnnotationKeys(at string, keys, others []string, errs *problems) {
	for i, key := range keys {
		field := fmt.Sprintf("%s[%d]", at, i)
		// the case of annotation keys does not matter
		for _, problem := range validation.IsQualifiedName(strings.ToLower(key)) {
			errs.add(field, fmt.Sprintf("is %q: %s", key, problem))
		}
		if slices.Contains(keys[:i], key) {
			errs.add(field, fmt.Sprintf("%q is given twice: remove one", key))
		}
		if slices.Contains(others, key) {
			errs.add(field, fmt.Sprintf("%q is required too: remove one", key))
		}
	}
}

// givenTwice reports providers with the same name.
func givenTwice(files []credentialFile) []error {
	var errs []error
	first := map[string]string{}
	for _, file := range files {
		for i, p := range file.providers {
			field := fmt.Sprintf("providers[%d].name", i)
			at := file.at(field, "")
			if p.Name == "" {
				continue // already reported
			}
			if before, twice := first[p.Name]; twice {
				at.Problem = fmt.Sprintf("%q is given twice, first in %s: remove one", p.Name, before)
				errs = append(errs, at)
				continue
			}
			first[p.Name] = fmt.Sprintf("%s:%d", at.File, at.Line)
		}
	}
	return errs
}

// findPlugins reports plugins that are missing or not executable.
func findPlugins(files []credentialFile, binDir string) []error {
	if info, err := os.Stat(binDir); err != nil || !info.IsDir() {
		if err == nil {
			err = fmt.Errorf("%s is no directory", binDir)
		}
		return []error{fmt.Errorf("--%s: %w: name the directory that the plugins are in", flagProvidersBinDir, err)}
	}
	var errs []error
	for _, file := range files {
		for i, p := range file.providers {
			if p.Name == "" || p.Name == "." || p.Name == ".." || strings.ContainsAny(p.Name, "/ ") {
				continue // already reported
			}
			path := filepath.Join(binDir, p.Name)
			_, err := exec.LookPath(path)
			if err == nil {
				continue
			}
			problem := fmt.Sprintf("%s is no program that can be run: make it executable", path)
			if errors.Is(err, fs.ErrNotExist) {
				problem = fmt.Sprintf("there is no plugin %s: install it there, or see --%s", path, flagProvidersBinDir)
			}
			errs = append(errs, file.at(fmt.Sprintf("providers[%d].name", i), problem))
		}
	}
	return errs
}

// at returns the problem with a field of the file.
func (f *credentialFile) at(field, problem string) *FieldError {
	one := problems{file: f.path, index: f.index}
	one.add(field, problem)
	return one.list[0]
}
