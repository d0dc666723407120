package imagecredentials_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kubeletconfigv1 "k8s.io/kubelet/config/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/imagecredentials"
	"github.com/quartet-node/quartet/test/logbuffer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	testTimeout = time.Minute
	protocol    = "credentialprovider.kubelet.k8s.io/v1"
	// hidden is part of every password and every token of these tests, and must appear nowhere.
	hidden = "hunter2"
)

// rig is a Providers whose plugins are a function, with its logs and metrics.
type rig struct {
	*imagecredentials.Providers
	t     *testing.T
	clock *clocktesting.FakeClock
	end   context.CancelFunc
	// counted holds the metrics.
	counted *prometheus.Registry
	log     logbuffer.Buffer

	mu   sync.Mutex
	runs []imagecredentials.Command

	accounts map[string]*v1.ServiceAccount
	// answer is the plugins' function.
	answer imagecredentials.Run
}

// ecr returns a provider with a name for registries.
func ecr(name string, matches ...string) kubeletconfigv1.CredentialProvider {
	return kubeletconfigv1.CredentialProvider{
		Name: name, MatchImages: matches, APIVersion: protocol, DefaultCacheDuration: &metav1.Duration{Duration: time.Hour},
	}
}

// withToken returns a provider that requires tokens.
func withToken(cacheType kubeletconfigv1.ServiceAccountTokenCacheType, needed bool) kubeletconfigv1.CredentialProvider {
	p := ecr("ecr", "*.test")
	p.TokenAttributes = &kubeletconfigv1.ServiceAccountTokenAttributes{
		ServiceAccountTokenAudience: "registry", CacheType: cacheType, RequireServiceAccount: ptr.To(needed),
		OptionalServiceAccountAnnotationKeys: []string{"region"},
	}
	return p
}

func newRig(t *testing.T, providers ...kubeletconfigv1.CredentialProvider) *rig {
	t.Helper()
	r := &rig{t: t, clock: clocktesting.NewFakeClock(time.Unix(1_700_000_000, 0)), answer: answers("Image", "", "a.test")}
	r.accounts = map[string]*v1.ServiceAccount{"shop/robot": {ObjectMeta: metav1.ObjectMeta{UID: "sa-1", Annotations: map[string]string{"role": "puller", "region": "north", "other": "x"}}}}
	r.start(imagecredentials.Config{
		Providers: nodeconfig.CredentialProviders{Providers: providers, BinDir: "/plugins"},
		Run:       r.run, Accounts: r, Clock: r.clock,
	})
	return r
}

// start creates the Providers from a configuration, to which it adds logs and metrics.
func (r *rig) start(cfg imagecredentials.Config) {
	r.counted = prometheus.NewRegistry()
	cfg.Metrics = imagecredentials.NewMetrics(r.counted)
	cfg.Logger = slog.New(slog.NewTextHandler(&r.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	ctx, end := context.WithCancel(context.Background())
	providers := imagecredentials.New(ctx, cfg)
	r.Providers, r.end = providers, end
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = providers.Run(ctx)
	}()
	r.t.Cleanup(func() {
		end()
		<-done
		if strings.Contains(r.logText(), hidden) {
			r.t.Errorf("a secret is in the log:\n%s\nwant text without %q", r.logText(), hidden)
		}
	})
}

func (r *rig) logText() string { return r.log.String() }

func (r *rig) run(ctx context.Context, c imagecredentials.Command) (imagecredentials.Output, error) {
	r.mu.Lock()
	r.runs = append(r.runs, c)
	answer := r.answer
	r.mu.Unlock()
	return answer(ctx, c)
}

// ran returns the number of runs.
func (r *rig) ran() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.runs)
}

// requests returns the requests to plugins, one per line.
func (r *rig) requests() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var b strings.Builder
	for _, c := range r.runs {
		b.Write(c.Stdin)
	}
	return b.String()
}

// failed returns the number of failed runs of each plugin, from the metrics.
func (r *rig) failed() map[string]int {
	r.t.Helper()
	families, err := r.counted.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	failed := map[string]int{}
	for _, family := range families {
		if family.GetName() == "kubelet_credential_provider_plugin_errors_total" {
			for _, one := range family.GetMetric() {
				failed[one.GetLabel()[0].GetValue()] = int(one.GetCounter().GetValue())
			}
		}
	}
	return failed
}

// Account and Token implement imagecredentials.Accounts.
func (r *rig) Account(_ context.Context, namespace, name string) (*v1.ServiceAccount, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if account := r.accounts[namespace+"/"+name]; account != nil {
		return account, nil
	}
	return nil, errors.New("there is no such account")
}

func (r *rig) Token(_ context.Context, pod *v1.Pod, account *v1.ServiceAccount, audience string) (string, error) {
	if audience == "" {
		return "", errors.New("no audience")
	}
	return fmt.Sprintf("%s-%s-%s-%s", hidden, pod.UID, account.UID, audience), nil
}

// response returns a plugin's output: credentials of the user "puller" for registries. An empty duration omits the
// field.
func response(kind, duration string, registries ...string) []byte {
	var auths []string
	for _, registry := range registries {
		auths = append(auths, fmt.Sprintf(`%q: {"username": "puller", "password": "%s-password"}`, registry, hidden))
	}
	if duration != "" {
		duration = fmt.Sprintf(`"cacheDuration": %q, `, duration)
	}
	return fmt.Appendf(nil, `{"apiVersion": %q, "kind": "CredentialProviderResponse", "cacheKeyType": %q, %s"auth": {%s}}`, protocol, kind, duration, strings.Join(auths, ", "))
}

// answers returns a plugin that writes such a response.
func answers(kind, duration string, registries ...string) imagecredentials.Run {
	return func(context.Context, imagecredentials.Command) (imagecredentials.Output, error) {
		return imagecredentials.Output{Stdout: response(kind, duration, registries...)}, nil
	}
}

func newPod(uid types.UID, account string) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: uid}, Spec: v1.PodSpec{ServiceAccountName: account}}
}

// want requests the credentials for a repository, and compares the registries of each provider, "a b|c", and the
// failures.
func (r *rig) want(pod *v1.Pod, repository, registries, failures string) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	found, wrong := r.For(ctx, pod, repository)
	var got []string
	for _, given := range found {
		got = append(got, strings.Join(slices.Sorted(maps.Keys(given.Config)), " "))
		for registry, entry := range given.Config {
			if entry.Username != "puller" || entry.Password != hidden+"-password" {
				r.t.Errorf("the credentials for %s are %+v, want Username %q and Password %v",
					registry, entry, "puller", hidden+"-password")
			}
		}
	}
	if strings.Join(got, "|") != registries {
		r.t.Errorf("%s: found %q, want %q", repository, strings.Join(got, "|"), registries)
	}
	text := fmt.Sprint(errors.Join(wrong...))
	if failures == "" {
		failures = "<nil>"
	}
	if text != failures {
		r.t.Errorf("%s: failures\n  %s\nwant\n  %s", repository, text, failures)
	}
	if strings.Contains(text, hidden) {
		r.t.Errorf("a secret is in the error %s, want text without %q", text, hidden)
	}
}
