package supportcmd

import (
	"encoding/base64"
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
