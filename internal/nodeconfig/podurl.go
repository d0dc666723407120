package nodeconfig

import (
	"fmt"
	"net/url"
	"strings"

	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
)

// StaticPodURL returns where a server gives pods; nil when the file names none.
func (c Config) StaticPodURL() *url.URL {
	at, err := url.Parse(c.Kubelet.StaticPodURL)
	if err != nil || at.Host == "" { // it was validated
		return nil
	}
	return at
}

// validateStaticPodURL reports an address or headers that no request can be made with. Values are not shown: they may
// have passwords in them.
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
			errs.add(strings.TrimSuffix(field, "."), "is no name of a header: must be letters, digits and dashes, for example Authorization")
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
	return (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z') && !strings.ContainsRune("!#$%&'*+-.^_`|~", r)
}

// notInHeaderValue reports whether RFC 9110 forbids a character in the value of a header.
func notInHeaderValue(r rune) bool { return (r < ' ' && r != '\t') || r == 0x7f }
