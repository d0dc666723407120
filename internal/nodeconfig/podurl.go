package nodeconfig

import (
	"fmt"
	"net/url"
	"strings"

	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
)

// StaticPodURL returns the URL of static pods; nil if the file names none.
func (c Config) StaticPodURL() *url.URL {
	at, err := url.Parse(c.Kubelet.StaticPodURL)
	if err != nil || at.Host == "" { // not set: set values have been validated
		return nil
	}
	return at
}

// validateStaticPodURL reports a URL or headers that are invalid in a request. It does not quote values because they
// may contain passwords.
func validateStaticPodURL(cfg *kubeletconfigv1beta1.KubeletConfiguration, errs *problems) {
	if cfg.StaticPodURL != "" {
		at, err := url.Parse(cfg.StaticPodURL)
		if err != nil || at.Hostname() == "" || (at.Scheme != "http" && at.Scheme != "https") {
			errs.add("staticPodURL", "must be an http:// or https:// URL with a host, for example https://config.example/pods")
		}
	}
	for name, values := range cfg.StaticPodURLHeader {
		field := joinField("staticPodURLHeader", name)
		if name == "" || strings.ContainsFunc(name, notInHeaderName) {
			errs.add(
				strings.TrimSuffix(field, "."),
				"is no name of a header: must be letters, digits and dashes, for example Authorization",
			)
			continue
		}
		for i, value := range values {
			if strings.ContainsFunc(value, notInHeaderValue) {
				errs.add(fmt.Sprintf("%s[%d]", field, i), "has a character that no header can have, such as a newline: remove it")
			}
		}
	}
}

// notInHeaderName reports whether RFC 9110 forbids a character in the name of a header.
func notInHeaderName(r rune) bool {
	return (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z') &&
		!strings.ContainsRune("!#$%&'*+-.^_`|~", r)
}

// notInHeaderValue reports whether RFC 9110 forbids a character in the value of a header.
func notInHeaderValue(r rune) bool { return (r < ' ' && r != '\t') || r == 0x7f }
