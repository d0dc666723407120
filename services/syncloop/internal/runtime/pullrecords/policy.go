package pullrecords

import (
	"fmt"
	"slices"
	"strings"

	"github.com/distribution/reference"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
)

// Policy decides for which images a pod's access is verified.
type Policy struct {
	// Verification is imagePullCredentialsVerificationPolicy; empty is NeverVerifyPreloadedImages.
	Verification kubeletconfigv1beta1.ImagePullCredentialsVerificationPolicy
	// Allowlist holds the images that are not verified with NeverVerifyAllowlistedImages: names without tag and digest, or
	// prefixes that end with /*.
	Allowlist []string
}

// mayVerify returns false if no image is verified.
func (p Policy) mayVerify() bool { return p.Verification != kubeletconfigv1beta1.NeverVerify }

// verifies reports whether access to an image is verified. pulled is true if this node has pulled the image, false if
// it was preloaded.
func (p Policy) verifies(image string, pulled bool) bool {
	switch p.Verification {
	case kubeletconfigv1beta1.NeverVerify:
		return false
	case kubeletconfigv1beta1.NeverVerifyPreloadedImages, "":
		return pulled
	case kubeletconfigv1beta1.NeverVerifyAllowlistedImages:
		return !p.allows(image)
	case kubeletconfigv1beta1.AlwaysVerify:
	}
	return true
}

func (p Policy) allows(image string) bool {
	name, err := withoutTag(image)
	if err != nil {
		name = image
	}
	return slices.ContainsFunc(p.Allowlist, func(pattern string) bool {
		if beginning, ok := strings.CutSuffix(pattern, "*"); ok {
			return strings.HasPrefix(name, beginning)
		}
		return name == pattern
	})
}

// withoutTag returns the name of an image in a pod without its tag and digest.
func withoutTag(image string) (string, error) {
	named, err := reference.Parse(image)
	if err != nil {
		return "", fmt.Errorf("%q is not a valid image name: %w", image, err)
	}
	if digested, ok := named.(reference.Digested); ok {
		image = strings.TrimSuffix(image, "@"+digested.Digest().String())
	}
	if tagged, ok := named.(reference.Tagged); ok {
		image = strings.TrimSuffix(image, ":"+tagged.Tag())
	}
	return image, nil
}
