package kubeletapi

import (
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
)

// page requests a page in a media type.
func (r *rig) page(path, accept string) *httptest.ResponseRecorder {
	api := Node(r.cfg)
	defer api.Close()
	answer, request := httptest.NewRecorder(), httptest.NewRequestWithContext(r.t.Context(), "GET", path, nil)
	if accept != "" {
		request.Header.Set("Accept", accept)
	}
	api.ServeHTTP(answer, request)
	return answer
}

func TestThePagesOfTheProcess(t *testing.T) {
	r := newRig(t)
	started := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	r.cfg.Clock = clocktesting.NewFakePassiveClock(started.Add(25*time.Hour + 6*time.Minute + 7*time.Second))
	r.cfg.Process = Process{Flags: map[string]string{"v": "2", "state-dir": "/var/lib/quartet"}, Started: started, Version: "v9", Kubernetes: "v1.37.1"}
	for _, c := range []struct {
		path, accept, want string
		code               int
	}{
		{"/flagz", "", "\nkubelet flagz\nWarning: ", 200},
		{"/flagz", "*/*", "purposes only.\nstate-dir=/var/lib/quartet\nv=2\n", 200},
		{"/flagz", "application/json;v=v1beta1;g=config.k8s.io;as=Flagz",
			`{"kind":"Flagz","apiVersion":"config.k8s.io/v1beta1","metadata":{"name":"kubelet"},"flags":{"state-dir":"/var/lib/quartet","v":"2"}}`, 200},
		{"/flagz", "application/json", "text/plain", 406},
		{"/statusz", "text/plain", "\nStarted: Fri Jan  2 03:04:05 UTC 2026\nUp: 25 hr 06 min 07 sec\nGo version: " + runtime.Version() +
			"\nBinary version: v9\nEmulation version: 1.37.1\nPaths: /attach /checkpoint /configz ", 200},
		{"/statusz", "application/json;v=v1beta1;g=config.k8s.io;as=Statusz",
			`"metadata":{"name":"kubelet"},"startTime":"2026-01-02T03:04:05Z","uptimeSeconds":90367,"goVersion":"` + runtime.Version() + `","binaryVersion":"v9","emulationVersion":"1.37.1","paths":["/attach"`, 200},
		{"/statusz", "application/json;v=v1beta1;g=config.k8s.io;as=Flagz", "as=Statusz", 406},
	} {
		if answer := r.page(c.path, c.accept); answer.Code != c.code || !strings.Contains(answer.Body.String(), c.want) {
			t.Errorf("%s as %q: got %d %s, want %s", c.path, c.accept, answer.Code, answer.Body, c.want)
		}
	}
}
