package supportcmd

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"math/rand/v2"
	"runtime/pprof"
	"strings"
	"testing"
)

func TestSecretsAreRemovedAndTheRestStays(t *testing.T) {
	s := newScrubber([]string{"hunter22", "first line\nsecond line of a key\n", "true"})
	for text, want := range map[string]string{
		"probe failed: got hunter22, want 200":                                     "probe failed: got [removed], want 200",
		"as base64 " + base64.StdEncoding.EncodeToString([]byte("hunter22")):       "as base64 [removed]",
		"the log has second line of a key alone":                                   "the log has [removed] alone",
		"ready is true":                                                            "ready is true",
		"Authorization: Bearer abc.def-ghi":                                        "Authorization: [removed] [removed]",
		`{"token":"abc def","pod":"web"}`:                                          `{"token":[removed],"pod":"web"}`,
		`msg="DB_PASSWORD=s3cr3t" pod=web`:                                         `msg="DB_PASSWORD=[removed]" pod=web`,
		"GET https://user:pass@example.com/x":                                      "GET https://[removed]@example.com/x",
		"-----BEGIN EC PRIVATE KEY-----\nMHcC\n-----END EC PRIVATE KEY-----\nnext": "[removed]\nnext",
		"-----BEGIN EC PRIVATE KEY-----\nMHcC":                                     "[removed]",
		"a JWT eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln, then":                    "a JWT [removed], then",
		"client-key-data: LS0tLS1CRUdJTg==":                                        "client-key-data: [removed]",
		"pod=default/web container=main exit_code=1":                               "pod=default/web container=main exit_code=1",
	} {
		if got := string(s.scrub([]byte(text))); got != want {
			t.Errorf("%s\ngot  %s\nwant %s", text, got, want)
		}
	}
}

// The reader of a bundle needs the paths and IDs in it.
func TestPathsAndIDsStay(t *testing.T) {
	const (
		uid = "0b4a7c9e-5d3f-4c1a-9e8d-7f6a5b4c3d2e"
		id  = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
	)
	var goroutines bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&goroutines, 2); err != nil {
		t.Fatal(err)
	}
	s := newScrubber([]string{"hunter22"})
	for _, text := range []string{
		goroutines.String(),
		"/var/lib/quartet/root/pods/" + uid + "/volumes/kubernetes.io~projected/kube-api-access-x7k2p",
		"/var/lib/kubelet/quartet/root/pods/0123456789abcdef0123456789abcdef/containers/kube-apiserver/1a2b3c4d",
		"/var/log/pods/kube-system_coredns-5d78c9869d-xk2lp_" + uid + "/coredns/0.log",
		"/sys/fs/cgroup/kubepods/besteffort/pod" + uid + "/" + id,
		"/kubepods-besteffort-pod" + strings.ReplaceAll(uid, "-", "_") + ".slice/cri-containerd-" + id + ".scope",
		"containerd://" + id,
		"docker.io/library/busybox@sha256:" + id,
		"quartet_syncloop_volume_operation_duration_seconds_of_each_plugin_bucket 5",
		"/srv/manifests/TestRecordedNodes/WatchPodUpdates/configurations/kubelet.yaml",
	} {
		if got := string(s.scrub([]byte(text))); got != text {
			t.Errorf("scrub() = %s, want it unchanged: %s", got, text)
		}
	}
}

// Random values have no more order than a key. The seed makes a failure repeatable.
func TestLongRandomValuesAreRemoved(t *testing.T) {
	random := rand.NewChaCha8([32]byte{1})
	s := newScrubber(nil)
	for size := 45; size < 300; size++ {
		for range 10 {
			value := make([]byte, size)
			_, _ = random.Read(value) // it has no error
			key := strings.Split(string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: value})), "\n")
			for form, secret := range map[string]string{
				"base64":                   base64.StdEncoding.EncodeToString(value),
				"base64 without an end":    base64.RawStdEncoding.EncodeToString(value),
				"base64url":                base64.URLEncoding.EncodeToString(value),
				"base64url in a path":      "/run/secrets/" + base64.RawURLEncoding.EncodeToString(value) + "/token",
				"hexadecimal":              hex.EncodeToString(value),
				"capitals":                 strings.ToUpper(hex.EncodeToString(value)),
				"a line of a PEM file":     key[1][:60],
				"base64 of a line of text": base64.StdEncoding.EncodeToString([]byte("password " + hex.EncodeToString(value))),
			} {
				if got := string(s.scrub([]byte("got " + secret + " here"))); got != "got "+removed+" here" {
					t.Errorf("%s of %d bytes: scrub(%s) = %s", form, size, secret, got)
				}
			}
		}
	}
}

// FuzzScrub: a known value is in no text, in whatever it is.
func FuzzScrub(f *testing.F) {
	f.Add("before ", "hunter22", " after")
	f.Add("Bearer ", "x y z 1 2", "\n-----BEGIN")
	f.Fuzz(func(t *testing.T, before, secret, after string) {
		if len(secret) < shortest || strings.Contains(removed, secret) || strings.Contains(secret, "removed") {
			t.Skip()
		}
		got := string(newScrubber([]string{secret}).scrub([]byte(before + secret + after)))
		// What is left of the text around it may have the value again, but not where it was.
		if strings.Contains(before+after, secret) || strings.Contains(before+removed+after, secret) {
			t.Skip()
		}
		if strings.Contains(got, secret) {
			t.Errorf("%q has %q", got, secret)
		}
	})
}

func TestAConfigurationHasNoCredentials(t *testing.T) {
	got, err := withoutCredentials([]byte(`kind: KubeletConfiguration
staticPodURL: https://user:pass@example.com/pods?token=abc
staticPodURLHeader: {Authorization: [Bearer abc], X-Key: [def]}
maxPods: 5 # a comment with a password
`))
	const want = `kind: KubeletConfiguration
maxPods: 5
staticPodURL: https://example.com/pods
staticPodURLHeader:
  Authorization: '[removed]'
  X-Key: '[removed]'
`
	if err != nil || string(got) != want {
		t.Errorf("got %s, %v, want %s", got, err, want)
	}
	if got, err := withoutCredentials([]byte("a: {hunter2")); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("what is not YAML is %s, %v", got, err)
	}
}
