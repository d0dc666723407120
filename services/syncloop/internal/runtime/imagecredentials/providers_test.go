package imagecredentials_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletconfigv1 "k8s.io/kubelet/config/v1"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/imagecredentials"
	"github.com/quartet-node/quartet/test/eventually"
)

func TestAPluginIsAskedForTheImagesThatItMatches(t *testing.T) {
	for match, repositories := range map[string]map[string]bool{
		"a.test":           {"a.test/web": true, "a.test:5000/web": false, "b.a.test/web": false, "a.test2/web": false},
		"*.test":           {"a.test/web": true, "b.a.test/web": false, "test/web": false},
		"*.*.test":         {"b.a.test/web": true, "a.test/web": false},
		"app*.test":        {"app1.test/web": true, "ap.test/web": false},
		"a.test:5000":      {"a.test:5000/web": true, "a.test/web": false, "a.test:50/web": false},
		"a.test:5000/shop": {"a.test:5000/shop/web": true, "a.test:5000/web": false},
		"a.test/shop/*":    {"a.test/shop/web": false},
		"docker.io":        {"docker.io/library/web": true},
	} {
		for repository, want := range repositories {
			r := newRig(t, ecr("ecr", "nothing.example", match))
			r.For(t.Context(), newPod("u1", ""), repository)
			if got := r.ran() == 1; got != want {
				t.Errorf("%s of %s: asked %v, want %v", repository, match, got, want)
			}
		}
	}
}

func TestAllProvidersThatMatchAreAskedInTheirOrder(t *testing.T) {
	r := newRig(t, ecr("one", "*.test"), ecr("two", "*.test"), ecr("other", "other.example"), ecr("three", "a.*"))
	r.answer = func(ctx context.Context, c imagecredentials.Command) (imagecredentials.Output, error) {
		switch c.Path {
		case "/plugins/one":
			return answers("Image", "", "a.test", "b.test")(ctx, c)
		case "/plugins/two":
			return imagecredentials.Output{Stderr: "the role may not"}, errors.New("fork failed")
		default:
			return answers("Image", "", "*.test")(ctx, c)
		}
	}
	r.want(newPod("u1", ""), "a.test/web", "a.test b.test|*.test", `credential provider "two": its plugin /plugins/two cannot be run: fork failed`)
	if !strings.Contains(r.logText(), "the role may not") || r.failed()["two"] != 1 || r.failed()["one"] != 0 {
		t.Errorf("failures counted %v, log\n%s\nwant text with %q, two 1 and one 0",
			r.failed(), r.logText(), "the role may not")
	}
	if c := r.runs[0]; !strings.Contains(string(c.Stdin), `{"kind":"CredentialProviderRequest","apiVersion":"credentialprovider.kubelet.k8s.io/v1","image":"a.test/web"}`+"\n") {
		t.Errorf("asked %s, want text with %q",
			c.Stdin,
			`{"kind":"CredentialProviderRequest","apiVersion":"credentialprovider.kubelet.k8s.io/v1","image":"a.test/web"}`+"\n")
	}
}

// TestAnswersAreKept checks the scope and the duration of the cache, from the response or the configuration.
func TestAnswersAreKept(t *testing.T) {
	for name, c := range map[string]struct {
		kind, holds string
		fallback    time.Duration
		// after is the time between the two requests, about the repository of the second, runs the number of runs after it.
		after time.Duration
		about string
		runs  int
	}{
		"the image":                      {"Image", "", time.Hour, time.Hour, "a.test:5000/web", 1},
		"another image":                  {"Image", "", time.Hour, 0, "a.test:5000/other", 2},
		"its registry":                   {"Registry", "", time.Hour, 0, "a.test:5000/other", 1},
		"another registry":               {"Registry", "", time.Hour, 0, "b.test:5000/web", 2},
		"another port":                   {"Registry", "", time.Hour, 0, "a.test:5001/web", 2},
		"all":                            {"Global", "", time.Hour, 0, "b.test:5000/other", 1},
		"too late":                       {"Image", "", time.Hour, time.Hour + 1, "a.test:5000/web", 2},
		"by the plugin, longer":          {"Image", "2h", time.Hour, 2 * time.Hour, "a.test:5000/web", 1},
		"by the plugin, shorter":         {"Image", "10m", time.Hour, 11 * time.Minute, "a.test:5000/web", 2},
		"not at all":                     {"Image", "0s", time.Hour, 0, "a.test:5000/web", 2},
		"not at all, by default":         {"Image", "", 0, 0, "a.test:5000/web", 2},
		"a duration that is none at all": {"Image", "-5m", time.Hour, 0, "a.test:5000/web", 2},
	} {
		t.Run(name, func(t *testing.T) {
			provider := ecr("ecr", "*.test:5000", "*.test:5001")
			provider.DefaultCacheDuration = &metav1.Duration{Duration: c.fallback}
			r := newRig(t, provider)
			r.answer = answers(c.kind, c.holds, "*.test")
			r.want(newPod("u1", ""), "a.test:5000/web", "*.test", "")
			r.clock.Step(c.after)
			r.want(newPod("u2", ""), c.about, "*.test", "")
			if r.ran() != c.runs {
				t.Errorf("the plugin has run %d times, want %d", r.ran(), c.runs)
			}
		})
	}
}

func TestPodsThatStartTogetherAskOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, ecr("ecr", "*.test"))
		gate := make(chan struct{})
		r.answer = func(ctx context.Context, c imagecredentials.Command) (imagecredentials.Output, error) {
			<-gate
			return answers("Image", "0s", "a.test")(ctx, c)
		}
		var callers sync.WaitGroup
		for range 10 {
			callers.Go(func() { r.want(newPod("u1", ""), "a.test/web", "a.test", "") })
		}
		ctx, cancel := context.WithCancel(t.Context())
		left := make(chan []error)
		go func() {
			_, failures := r.For(ctx, newPod("u2", ""), "a.test/web")
			left <- failures
		}()
		synctest.Wait() // all requests have begun
		cancel()
		if failures := <-left; len(failures) != 1 || !errors.Is(failures[0], context.Canceled) {
			t.Errorf("the caller that left got %v", failures)
		}
		close(gate)
		callers.Wait()
		if r.ran() != 1 || r.logText() != "" {
			t.Errorf("%d runs, told is %s, want 1 and an empty text", r.ran(), r.logText())
		}
	})
}

// TestAPluginThatHangsIsGivenUp checks the limit of one minute, even if the plugin survives the kill, and that no other
// plugin is delayed.
func TestAPluginThatHangsIsGivenUp(t *testing.T) {
	for name, c := range map[string]struct {
		killable bool
		want     string
		after    time.Duration
	}{
		"one that is killed":      {true, `credential provider "slow": its plugin /plugins/slow did not end within 1m0s and was killed: check whether this machine can reach the service that it calls`, time.Minute},
		"one that does not break": {false, `credential provider "slow": its plugin /plugins/slow did not end within 1m0s, not even when it was killed: check what it waits for with ps -o wchan`, 70 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := &rig{t: t}
				broken := make(chan struct{})
				r.answer = func(ctx context.Context, command imagecredentials.Command) (imagecredentials.Output, error) {
					if command.Path != "/plugins/slow" {
						return answers("Image", "", "a.test")(ctx, command)
					}
					<-ctx.Done()
					if !c.killable {
						<-broken
					}
					return imagecredentials.Output{}, context.Cause(ctx)
				}
				providers := nodeconfig.CredentialProviders{Providers: []kubeletconfigv1.CredentialProvider{ecr("slow", "a.test"), ecr("ecr", "*.test")}, BinDir: "/plugins"}
				r.start(imagecredentials.Config{Providers: providers, Run: r.run, Clock: clock.RealClock{}})
				begun := time.Now()
				r.want(newPod("u1", ""), "b.test/web", "a.test", "")
				if took := time.Since(begun); took != 0 {
					t.Errorf("another image has waited %v", took)
				}
				begun = time.Now()
				found, failures := r.For(t.Context(), newPod("u1", ""), "a.test/web")
				if len(found) != 1 || len(failures) != 1 || failures[0].Error() != c.want || time.Since(begun) != c.after {
					t.Errorf("after %v found %d, failures %v", time.Since(begun), len(found), failures)
				}
				close(broken)
				r.end()
				synctest.Wait()
			})
		})
	}
}

// TestNotMoreRunsAtOnceThanThereAreTurns checks that a request without a turn within the minute fails.
func TestNotMoreRunsAtOnceThanThereAreTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &rig{t: t}
		broken := make(chan struct{})
		r.answer = func(ctx context.Context, _ imagecredentials.Command) (imagecredentials.Output, error) {
			<-broken
			return imagecredentials.Output{}, context.Cause(ctx)
		}
		providers := nodeconfig.CredentialProviders{
			Providers: []kubeletconfigv1.CredentialProvider{ecr("slow", "*.test")}, BinDir: "/plugins",
		}
		r.start(imagecredentials.Config{Providers: providers, Run: r.run, Clock: clock.RealClock{}})
		var callers sync.WaitGroup
		var mu sync.Mutex
		waited := 0
		for i := range 30 {
			callers.Go(func() {
				_, failures := r.For(t.Context(), newPod("u1", ""), "a.test/web"+strings.Repeat("x", i))
				mu.Lock()
				defer mu.Unlock()
				if len(failures) == 1 && strings.Contains(failures[0].Error(), "has not been run within 1m0s") {
					waited++
				}
			})
		}
		callers.Wait()
		if waited != 10 || r.ran() != 20 {
			t.Errorf("%d runs at once, %d had no turn", r.ran(), waited)
		}
		close(broken)
		r.end()
		synctest.Wait()
	})
}

func TestNothingRunsAfterTheEnd(t *testing.T) {
	r := newRig(t, ecr("ecr", "*.test"))
	r.answer = func(ctx context.Context, _ imagecredentials.Command) (imagecredentials.Output, error) {
		<-ctx.Done()
		return imagecredentials.Output{}, context.Cause(ctx)
	}
	var callers sync.WaitGroup
	callers.Go(func() {
		r.want(newPod("u1", ""), "a.test/web", "", `credential provider "ecr": its plugin /plugins/ecr was ended: syncloop ends`)
	})
	eventually.That(t, "the plugin runs", func() bool { return r.ran() == 1 })
	r.end()
	callers.Wait()
	r.want(newPod("u1", ""), "a.test/web", "", `credential provider "ecr": syncloop ends`)
	if r.ran() != 1 {
		t.Errorf("%d runs, want 1", r.ran())
	}
}

func TestOnlySoManyAnswersAreKept(t *testing.T) {
	r := newRig(t, ecr("ecr", "*.test"))
	for i := range 1200 {
		r.clock.Step(time.Millisecond)
		r.want(newPod("u1", ""), "a.test/web"+strings.Repeat("x", i), "a.test", "")
	}
	r.want(newPod("u1", ""), "a.test/web"+strings.Repeat("x", 1199), "a.test", "")
	r.want(newPod("u1", ""), "a.test/web"+strings.Repeat("x", 200), "a.test", "")
	if r.ran() != 1200 {
		t.Errorf("%d runs: the newest thousand answers are not kept", r.ran())
	}
	r.want(newPod("u1", ""), "a.test/web", "a.test", "")
	if r.ran() != 1201 {
		t.Errorf("%d runs: the oldest answer is kept, want 1201", r.ran())
	}
}
