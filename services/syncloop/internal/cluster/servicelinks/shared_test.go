package servicelinks

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/quartet-node/quartet/test/eventually"
)

// siteServices are what the configmux of a site has. A namespace that is not in it is not known.
type siteServices struct {
	mu  sync.Mutex
	all map[string][]v1.Service
}

type notKnown struct{}

func (notKnown) Error() string { return "configmux has not got it" }
func (notKnown) Unknown()      {}

func (s *siteServices) Services(namespace string) ([]v1.Service, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if services, known := s.all[namespace]; known {
		return services, nil
	}
	return nil, notKnown{}
}

func (s *siteServices) Service(namespace, name string) (*v1.Service, error) {
	services, err := s.Services(namespace)
	for i := range services {
		if services[i].Name == name {
			return &services[i], nil
		}
	}
	if err == nil {
		err = apierrors.NewNotFound(v1.Resource("services"), name)
	}
	return nil, err
}

func (s *siteServices) put(namespace string, services ...v1.Service) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all[namespace] = services
}

func serviceAt(namespace, name, address string) v1.Service {
	return v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       v1.ServiceSpec{ClusterIP: address, Ports: []v1.ServicePort{{Port: 80}}},
	}
}

// TestServicesOfASite: a pod has the variables of its namespace and of the API server as soon as configmux has both,
// and is told so if it has waited in vain.
func TestServicesOfASite(t *testing.T) {
	clock := testingclock.NewFakeClock(time.Unix(1000, 0))
	site := &siteServices{all: map[string][]v1.Service{}}
	told := make(chan types.UID, 10)
	s := NewShared(SharedConfig{Services: site, Clock: clock, Changed: func(uid types.UID) { told <- uid }})
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "web"}}
	type result struct {
		hosts []string
		err   error
	}
	ask := func(pod *v1.Pod) <-chan result {
		out := make(chan result, 1)
		go func() {
			all, err := s.Variables(t.Context(), pod)
			var r result
			for _, e := range all {
				if strings.HasSuffix(e.Name, "_SERVICE_HOST") {
					r.hosts = append(r.hosts, e.Name+"="+e.Value)
				}
			}
			r.err = err
			out <- r
		}()
		return out
	}
	site.put("default", serviceAt("default", "kubernetes", "10.0.0.1"), serviceAt("default", "other", "10.0.0.2"))
	late := ask(pod)
	eventually.That(t, "the pod waits", clock.HasWaiters)
	clock.Step(firstAnswer)
	var unknown *UnknownError
	if got := <-late; !errors.As(got.err, &unknown) || !strings.Contains(unknown.Why, "has not got it") {
		t.Errorf("while the namespace is not known: %v", got)
	}
	site.put("shop", serviceAt("shop", "db", "10.0.0.3"))
	s.Tell()
	if got := <-told; got != "web" {
		t.Errorf("%s was told, want web", got)
	}
	s.Tell()
	select {
	case got := <-told:
		t.Errorf("%s was told again, and waits no more", got)
	default:
	}
	want := []string{"DB_SERVICE_HOST=10.0.0.3", "KUBERNETES_SERVICE_HOST=10.0.0.1"}
	if got := <-ask(pod); got.err != nil || !slices.Equal(got.hosts, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	unlinked := pod.DeepCopy()
	unlinked.Namespace, unlinked.Spec.EnableServiceLinks = "elsewhere", new(bool)
	if got := <-ask(unlinked); got.err != nil || !slices.Equal(got.hosts, want[1:]) {
		t.Errorf("without links: got %v, want %v", got, want[1:])
	}

	// One that waits goes on as soon as the services are there.
	other := pod.DeepCopy()
	other.Namespace, other.UID = "new", "other"
	soon := ask(other)
	eventually.That(t, "the pod waits", clock.HasWaiters)
	site.put("new")
	s.Tell()
	if got := <-soon; got.err != nil || !slices.Equal(got.hosts, want[1:]) {
		t.Errorf("in time: got %v, want %v", got, want[1:])
	}
	s.Forget("other")
}
