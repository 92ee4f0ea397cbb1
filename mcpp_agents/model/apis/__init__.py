"""The models' APIs: requests in their own terms, and streamed replies."""
