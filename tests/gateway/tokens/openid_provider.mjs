// An OpenID provider that gives access tokens as JWTs to one client. Prints its port.
import Provider from 'oidc-provider';

const provider = new Provider('http://127.0.0.1', {
  clients: [{
    client_id: 'corp-ada',
    client_secret: 'a-secret-for-this-test',
    grant_types: ['client_credentials'],
    redirect_uris: [],
    response_types: [],
  }],
  features: {
    clientCredentials: { enabled: true },
    resourceIndicators: {
      enabled: true,
      getResourceServerInfo: () => ({
        scope: '', audience: 'urn:mcpp', accessTokenFormat: 'jwt', accessTokenTTL: 600,
        jwt: { sign: { alg: 'RS256' } },
      }),
    },
  },
});
const server = provider.listen(0, '127.0.0.1', () => console.log(server.address().port));
