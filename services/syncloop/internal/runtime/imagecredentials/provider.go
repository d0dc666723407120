package imagecredentials

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/singleflight"
	v1 "k8s.io/api/core/v1"
	kubeletconfigv1 "k8s.io/kubelet/config/v1"
	pluginv1 "k8s.io/kubelet/pkg/apis/credentialprovider/v1"
	"k8s.io/kubernetes/pkg/credentialprovider"
)

// provider calls one plugin and caches its responses.
type provider struct {
	all *Providers
	kubeletconfigv1.CredentialProvider
	cache *cache
	// flight deduplicates concurrent equal requests.
	flight singleflight.Group
	// turns limits the concurrent runs of the plugin.
	turns chan struct{}
}

func newProvider(all *Providers, given kubeletconfigv1.CredentialProvider) *provider {
	return &provider{all: all, CredentialProvider: given, cache: newCache(), turns: make(chan struct{}, maxRuns)}
}

// matches reports whether the plugin is configured for a repository.
func (p *provider) matches(repository string) bool {
	return slices.ContainsFunc(p.MatchImages, func(pattern string) bool {
		matched, err := credentialprovider.URLsMatchStr(pattern, repository)
		return matched && err == nil
	})
}

// identity is the service account for which the plugin is called.
type identity struct {
	// token is the service account's token, empty without one; annotations are those annotations of it that the plugin is
	// configured to receive.
	token       string
	annotations map[string]string
	// key separates the cached responses of different identities; empty without a service account.
	key string
	// account is the service account; nil without one.
	account *credentialprovider.ServiceAccountCoordinates
}

// identity returns the identity for a pod's service account. If ask is false, the plugin is not called: the pod has no
// service account, or the service account lacks a required annotation.
func (p *provider) identity(ctx context.Context, pod *v1.Pod) (id identity, ask bool, err error) {
	attributes := p.TokenAttributes
	if attributes == nil {
		return identity{}, true, nil
	}
	name := pod.Spec.ServiceAccountName
	if name == "" {
		return identity{}, attributes.RequireServiceAccount == nil || !*attributes.RequireServiceAccount, nil
	}
	account, err := p.all.cfg.Accounts.Account(ctx, pod.Namespace, name)
	if err != nil {
		return identity{}, false, fmt.Errorf("getting the service account %s/%s, whose token it needs: %w", pod.Namespace, name, err)
	}
	if id.annotations, ask = selectAnnotations(account, attributes); !ask {
		return identity{}, false, nil
	}
	if id.token, err = p.all.cfg.Accounts.Token(ctx, pod, account, attributes.ServiceAccountTokenAudience); err != nil {
		return identity{}, false, fmt.Errorf("getting a token of the service account %s/%s for the audience %q: %w", pod.Namespace, name, attributes.ServiceAccountTokenAudience, err)
	}
	id.account = &credentialprovider.ServiceAccountCoordinates{
		UID: string(account.UID), Namespace: pod.Namespace, Name: name,
	}
	id.key = fmt.Sprintf("%q %q %q %s", pod.Namespace, name, account.UID, encodeAnnotations(id.annotations))
	if attributes.CacheType == kubeletconfigv1.TokenServiceAccountTokenCacheType {
		id.key += " " + digest(id.token)
	}
	return id, true, nil
}

// selectAnnotations returns the annotations of a service account that a plugin is configured to receive, and whether
// all required ones exist.
func selectAnnotations(
	account *v1.ServiceAccount,
	attributes *kubeletconfigv1.ServiceAccountTokenAttributes,
) (annotations map[string]string, all bool) {
	annotations = map[string]string{}
	for _, key := range attributes.RequiredServiceAccountAnnotationKeys {
		value, ok := account.Annotations[key]
		if !ok {
			return nil, false
		}
		annotations[key] = value
	}
	for _, key := range attributes.OptionalServiceAccountAnnotationKeys {
		if value, ok := account.Annotations[key]; ok {
			annotations[key] = value
		}
	}
	return annotations, true
}

// encodeAnnotations returns an unambiguous encoding of annotations.
func encodeAnnotations(annotations map[string]string) string {
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		fmt.Fprintf(&b, "%q=%q ", key, annotations[key])
	}
	return b.String()
}

// digest returns a digest that replaces a secret in a key.
func digest(secret string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(secret))) }

// provide returns the plugin's credentials for a repository and a pod, from the cache or from a new run.
func (p *provider) provide(ctx context.Context, pod *v1.Pod, repository string) (Given, error) {
	id, ask, err := p.identity(ctx, pod)
	if err != nil || !ask {
		return Given{}, err
	}
	config, err := p.provideFor(ctx, repository, id)
	return Given{Config: config, Account: id.account}, err
}

func (p *provider) provideFor(
	ctx context.Context,
	repository string,
	id identity,
) (credentialprovider.DockerConfig, error) {
	if config, ok := p.cached(repository, id); ok {
		return config, nil
	}
	// Pods with the same key share one run. Pods with different tokens do not, because the response may depend on the
	// token.
	key := fmt.Sprintf("%q %s %s", repository, id.key, digest(id.token))
	answers := p.flight.DoChan(key, func() (any, error) {
		if config, ok := p.cached(repository, id); ok {
			return config, nil // another caller has just run the plugin
		}
		return p.ask(repository, id)
	})
	// A plugin that does not end even when it is killed, for example on a hanging file system, is abandoned.
	timer := p.all.cfg.Clock.NewTimer(runLimit + 2*killTimeout)
	defer timer.Stop()
	select {
	case answer := <-answers:
		if answer.Err != nil {
			return nil, answer.Err
		}
		return answer.Val.(credentialprovider.DockerConfig), nil //nolint:forcetypeassert // it is what the function above returns
	case <-timer.C():
		return nil, fmt.Errorf("its plugin %s did not end within %v, not even when it was killed: check what it waits for with ps -o wchan", p.path(), runLimit)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// cached returns the cached response for a repository: for the image, for its registry, or for all images.
func (p *provider) cached(repository string, id identity) (credentialprovider.DockerConfig, bool) {
	now := p.all.cfg.Clock.Now()
	for _, kind := range []pluginv1.PluginCacheKeyType{
		pluginv1.ImagePluginCacheKeyType, pluginv1.RegistryPluginCacheKeyType, pluginv1.GlobalPluginCacheKeyType,
	} {
		if config, ok := p.cache.get(now, cacheKey(kind, repository, id)); ok {
			return config, true
		}
	}
	return nil, false
}

// cacheKey returns the key of a cached response.
func cacheKey(kind pluginv1.PluginCacheKeyType, repository string, id identity) string {
	about := "" // for all images
	switch kind {
	case pluginv1.ImagePluginCacheKeyType:
		about = repository
	case pluginv1.RegistryPluginCacheKeyType:
		about, _, _ = strings.Cut(repository, "/")
	case pluginv1.GlobalPluginCacheKeyType:
	}
	return fmt.Sprintf("%q %s", about, id.key)
}

// path returns the path of the plugin.
func (p *provider) path() string { return filepath.Join(p.all.cfg.Providers.BinDir, p.Name) }

// ask runs the plugin and caches the response for the duration that it contains.
func (p *provider) ask(repository string, id identity) (credentialprovider.DockerConfig, error) {
	if !p.all.begin() {
		return nil, errShuttingDown
	}
	defer p.all.running.Done()
	response, err := p.run(repository, id)
	if err != nil {
		return nil, err
	}
	// The token may be the password only if responses are cached per token.
	if id.token != "" && p.TokenAttributes.CacheType != kubeletconfigv1.TokenServiceAccountTokenCacheType {
		for _, auth := range response.Auth {
			if auth.Password == id.token {
				return nil, fmt.Errorf("its plugin %s has returned the token of the service account as password, which needs cacheType: Token in its tokenAttributes", p.path())
			}
		}
	}
	config := make(credentialprovider.DockerConfig, len(response.Auth))
	for registry, auth := range response.Auth {
		config[registry] = credentialprovider.DockerConfigEntry{Username: auth.Username, Password: auth.Password}
	}
	holds := time.Duration(0)
	switch {
	case response.CacheDuration != nil:
		holds = response.CacheDuration.Duration
	case p.DefaultCacheDuration != nil:
		holds = p.DefaultCacheDuration.Duration
	}
	if holds > 0 {
		p.cache.put(cacheKey(response.CacheKeyType, repository, id), config, p.all.cfg.Clock.Now(), holds)
	}
	return config, nil
}
