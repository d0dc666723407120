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

// provider asks one plugin, and keeps its answers.
type provider struct {
	all *Providers
	kubeletconfigv1.CredentialProvider
	cache *cache
	// asking has each question asked by one at a time.
	asking singleflight.Group
	// turns has room for as many as may run.
	turns chan struct{}
}

func newProvider(all *Providers, given kubeletconfigv1.CredentialProvider) *provider {
	return &provider{all: all, CredentialProvider: given, cache: newCache(), turns: make(chan struct{}, maxRuns)}
}

// matches tells whether the plugin is for a repository.
func (p *provider) matches(repository string) bool {
	return slices.ContainsFunc(p.MatchImages, func(pattern string) bool {
		matched, err := credentialprovider.URLsMatchStr(pattern, repository)
		return matched && err == nil
	})
}

// identity is on whose behalf the plugin is asked.
type identity struct {
	// token is the service account's, empty without one; annotations are those of it that the plugin wants.
	token       string
	annotations map[string]string
	// key tells identities apart whose answers are kept apart; empty without a service account.
	key string
	// account is that service account; nil without one.
	account *credentialprovider.ServiceAccountCoordinates
}

// identity gets what the plugin is told of a pod's service account. It is not asked at all when ask is false: the pod
// has no service account, or that not the annotations by which it would take part.
func (p *provider) identity(ctx context.Context, pod *v1.Pod) (who identity, ask bool, err error) {
	wants := p.TokenAttributes
	if wants == nil {
		return identity{}, true, nil
	}
	name := pod.Spec.ServiceAccountName
	if name == "" {
		return identity{}, wants.RequireServiceAccount == nil || !*wants.RequireServiceAccount, nil
	}
	account, err := p.all.cfg.Accounts.Account(ctx, pod.Namespace, name)
	if err != nil {
		return identity{}, false, fmt.Errorf("getting the service account %s/%s, of which it wants a token: %w", pod.Namespace, name, err)
	}
	if who.annotations, ask = wanted(account, wants); !ask {
		return identity{}, false, nil
	}
	if who.token, err = p.all.cfg.Accounts.Token(ctx, pod, account, wants.ServiceAccountTokenAudience); err != nil {
		return identity{}, false, fmt.Errorf("getting a token of the service account %s/%s for the audience %q: %w", pod.Namespace, name, wants.ServiceAccountTokenAudience, err)
	}
	who.account = &credentialprovider.ServiceAccountCoordinates{UID: string(account.UID), Namespace: pod.Namespace, Name: name}
	who.key = fmt.Sprintf("%q %q %q %s", pod.Namespace, name, account.UID, written(who.annotations))
	if wants.CacheType == kubeletconfigv1.TokenServiceAccountTokenCacheType {
		who.key += " " + digest(who.token)
	}
	return who, true, nil
}

// wanted are the annotations of a service account that a plugin wants, and whether all are there that it requires.
func wanted(account *v1.ServiceAccount, wants *kubeletconfigv1.ServiceAccountTokenAttributes) (annotations map[string]string, all bool) {
	annotations = map[string]string{}
	for _, key := range wants.RequiredServiceAccountAnnotationKeys {
		value, ok := account.Annotations[key]
		if !ok {
			return nil, false
		}
		annotations[key] = value
	}
	for _, key := range wants.OptionalServiceAccountAnnotationKeys {
		if value, ok := account.Annotations[key]; ok {
			annotations[key] = value
		}
	}
	return annotations, true
}

// written has annotations as one text, in which none is mistaken for another.
func written(annotations map[string]string) string {
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		fmt.Fprintf(&b, "%q=%q ", key, annotations[key])
	}
	return b.String()
}

// digest stands for a secret in a key.
func digest(secret string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(secret))) }

// provide gives what the plugin has for a repository on behalf of a pod, as it is kept or as it answers now.
func (p *provider) provide(ctx context.Context, pod *v1.Pod, repository string) (Given, error) {
	who, ask, err := p.identity(ctx, pod)
	if err != nil || !ask {
		return Given{}, err
	}
	config, err := p.provideFor(ctx, repository, who)
	return Given{Config: config, Account: who.account}, err
}

func (p *provider) provideFor(ctx context.Context, repository string, who identity) (credentialprovider.DockerConfig, error) {
	if config, ok := p.kept(repository, who); ok {
		return config, nil
	}
	// Pods that want the same ask once. Those with tokens of their own do not, for the plugin may answer each in another
	// way.
	key := fmt.Sprintf("%q %s %s", repository, who.key, digest(who.token))
	answers := p.asking.DoChan(key, func() (any, error) {
		if config, ok := p.kept(repository, who); ok {
			return config, nil // another has just asked
		}
		return p.ask(repository, who)
	})
	// One that does not even end when it is killed, as for a file system that hangs, is not waited for.
	patience := p.all.cfg.Clock.NewTimer(runLimit + 2*killed)
	defer patience.Stop()
	select {
	case answer := <-answers:
		if answer.Err != nil {
			return nil, answer.Err
		}
		return answer.Val.(credentialprovider.DockerConfig), nil //nolint:forcetypeassert // it is what the function above returns
	case <-patience.C():
		return nil, fmt.Errorf("its plugin %s did not end within %v, and not when it was killed: see what it waits for with ps -o wchan", p.path(), runLimit)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// kept is the last answer that holds for a repository: for itself, for its registry or for all.
func (p *provider) kept(repository string, who identity) (credentialprovider.DockerConfig, bool) {
	now := p.all.cfg.Clock.Now()
	for _, kind := range []pluginv1.PluginCacheKeyType{pluginv1.ImagePluginCacheKeyType, pluginv1.RegistryPluginCacheKeyType, pluginv1.GlobalPluginCacheKeyType} {
		if config, ok := p.cache.get(now, cacheKey(kind, repository, who)); ok {
			return config, true
		}
	}
	return nil, false
}

// cacheKey is what an answer is kept by.
func cacheKey(kind pluginv1.PluginCacheKeyType, repository string, who identity) string {
	about := "" // of all
	switch kind {
	case pluginv1.ImagePluginCacheKeyType:
		about = repository
	case pluginv1.RegistryPluginCacheKeyType:
		about, _, _ = strings.Cut(repository, "/")
	case pluginv1.GlobalPluginCacheKeyType:
	}
	return fmt.Sprintf("%q %s", about, who.key)
}

// path is that of the plugin.
func (p *provider) path() string { return filepath.Join(p.all.cfg.Providers.BinDir, p.Name) }

// ask runs the plugin, and keeps the answer for as long as it says.
func (p *provider) ask(repository string, who identity) (credentialprovider.DockerConfig, error) {
	if !p.all.begin() {
		return nil, errEnds
	}
	defer p.all.running.Done()
	response, err := p.run(repository, who)
	if err != nil {
		return nil, err
	}
	// Only where each token has answers of its own may it be the password.
	if who.token != "" && p.TokenAttributes.CacheType != kubeletconfigv1.TokenServiceAccountTokenCacheType {
		for _, auth := range response.Auth {
			if auth.Password == who.token {
				return nil, fmt.Errorf("its plugin %s has answered with the token of the service account as password, which needs cacheType: Token in its tokenAttributes", p.path())
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
		p.cache.put(cacheKey(response.CacheKeyType, repository, who), config, p.all.cfg.Clock.Now(), holds)
	}
	return config, nil
}
